// Where the parameters lie. The forward and backward pass gathers a unit before it uses it and releases it
// after. The optimizer steps this rank's share of the fp32 masters. The values "that compute reads" have the
// dtype of the matmuls; in fp32 they are the masters themselves.
//
//   ZeRO stage           values that compute reads        fp32 masters
//   none                 whole on every rank              whole on every rank
//   optimizer, gradients whole on every rank              this rank's share
//   parameters           this rank's share, gathered      this rank's share
//                        unit by unit
//
// One thread may step units (prefetch_master, open_master, close_master: no collectives) while another calls
// the rest. That other thread must not use a unit from before its step until after it.
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
#include "trireme/shard/master_share.h"
#include "trireme/shard/unit_shares.h"

namespace trireme {

class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  ParameterStore& operator=(ParameterStore&&) = delete;
  // The unit's whole flat values [elements], in the dtype of the matmuls; valid until release. Collective
  // where masters or parameters are sharded.
  virtual at::Tensor gather(int unit) = 0;
  virtual void release(int unit) = 0;
  // The caller will gather this unit next; a store may begin now.
  virtual void prefetch(int unit) { static_cast<void>(unit); }
  // The caller will gather this unit after the next one; a store may begin slow work now. Not collective.
  virtual void prefetch_later(int unit) { static_cast<void>(unit); }
  // True: prefetch is collective as gather is; all ranks call it in one order.
  virtual bool prefetch_is_collective() const { return false; }

  // Of each unit, what open_master gives: this rank's share, or the whole unit.
  virtual const std::vector<UnitShare>& shares() const = 0;
  // The masters of this rank's share (of the whole unit where masters are replicated), to be stepped with the
  // values that come with them. Valid until close_master, after which compute reads the new values. On the
  // host where the optimizer is offloaded.
  virtual MasterShare open_master(int unit) = 0;
  virtual void close_master(int unit) = 0;
  // This unit's master will be opened next.
  virtual void prefetch_master(int unit) { static_cast<void>(unit); }

  // The whole fp32 masters of a unit; not to be written to. Collective where they are sharded.
  virtual at::Tensor whole_master(int unit) = 0;
};

struct ParameterSettings {
  at::ScalarType compute_dtype = at::kFloat;
  at::Device device = at::kCPU;
  Offload parameters = Offload::none;
  Offload optimizer = Offload::none;
  SpillFile* spill = nullptr;  // for Offload::disk
  bool masters = true;         // false: values are never stepped, so that they need no fp32 masters
  // For offloading beside a GPU; null where the device is the host.
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
