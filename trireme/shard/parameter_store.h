// Where the parameters lie. The walk gathers a unit before it uses it and releases it after; the optimizer steps
// this rank's share of the fp32 masters. Values "that compute reads" have the dtype of the matmuls; in fp32 they
// are the masters themselves.
//
//   ZeRO stage           values that compute reads        fp32 masters
//   none                 whole on every rank              whole on every rank
//   optimizer, gradients whole on every rank              this rank's share
//   parameters           this rank's share, gathered      this rank's share
//                        unit by unit
//
// Units may be stepped (prefetch_master, open_master, close_master: no collectives) on another thread than that
// which uses the rest, as long as that one keeps away from a unit from before its step until after it.
#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/comm/group.h"
#include "trireme/device/pinned_pool.h"
#include "trireme/memory/copy_stream.h"
#include "trireme/memory/offload.h"
#include "trireme/memory/spill_file.h"
#include "trireme/shard/flat_unit.h"

namespace trireme {

class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  ParameterStore& operator=(ParameterStore&&) = delete;
  // The unit's whole flat values, valid until release. Collective where masters or parameters are sharded.
  virtual at::Tensor gather(int unit) = 0;
  virtual void release(int unit) = 0;
  // The walk will gather this unit next: a store may begin now.
  virtual void prefetch(int unit) { static_cast<void>(unit); }
  // The walk will gather this unit after the next: a store may begin what takes that long. Not collective.
  virtual void prefetch_later(int unit) { static_cast<void>(unit); }
  // True: like gather, prefetch is called by all ranks in one order.
  virtual bool prefetch_is_collective() const { return false; }

  // fp32 masters of this rank's share (where masters are replicated: of the whole), to be stepped; valid until
  // close_master, after which what compute reads follows. On the host where the optimizer is offloaded.
  virtual at::Tensor open_master(int unit) = 0;
  virtual void close_master(int unit) = 0;
  // The unit will be opened next.
  virtual void prefetch_master(int unit) { static_cast<void>(unit); }

  // The whole fp32 masters of a unit; not to be written to. Collective where they are sharded.
  virtual at::Tensor whole_master(int unit) = 0;
  // Sets them, and what compute reads, from a whole fp32 unit; every rank gives the same values.
  virtual void set(int unit, const at::Tensor& whole) = 0;
};

struct ParameterSettings {
  at::ScalarType compute_dtype = at::kFloat;
  at::Device device = at::kCPU;
  Offload parameters = Offload::none;
  Offload optimizer = Offload::none;
  SpillFile* spill = nullptr;  // for Offload::disk
  bool masters = true;         // false: values are never stepped, so that they need no fp32 masters
  // Beside a GPU, for what is offloaded; null where the device is the host.
  std::shared_ptr<CopyStream> copies = nullptr;
  std::shared_ptr<PinnedPool> pinned = nullptr;
};

// Values whole on every rank; masters whole, or sharded over `group` (`shard_masters`).
std::unique_ptr<ParameterStore> make_replicated_parameters(const std::vector<FlatUnit>& units, Group& group,
                                                           bool shard_masters,
                                                           const ParameterSettings& settings);
// Values and masters sharded over `group`.
std::unique_ptr<ParameterStore> make_sharded_parameters(const std::vector<FlatUnit>& units, Group& group,
                                                        const ParameterSettings& settings);

}  // namespace trireme
