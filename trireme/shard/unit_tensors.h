// One flat tensor a unit (parameter shards, fp32 masters, a moment of AdamW), on the device, on the host or
// on disk. A user opens a unit to read or change it, and closes it. Tensors on disk are read before their use
// and written back while later work goes on. Threads may use different units, never one unit,
// at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/device/pinned_pool.h"
#include "trireme/memory/offload.h"
#include "trireme/memory/spill_file.h"

namespace trireme {

class UnitTensors {
 public:
  virtual ~UnitTensors() = default;
  UnitTensors& operator=(UnitTensors&&) = delete;
  // The unit's values, on the device for Offload::none, else on the host; valid until close.
  virtual at::Tensor open(int unit) = 0;
  // `changed`: the caller wrote to the values, and they must be kept.
  virtual void close(int unit, bool changed) = 0;
  // The unit will be opened soon.
  virtual void prefetch(int unit) = 0;

  // The unit's values become `values`.
  void set(int unit, const at::Tensor& values) {
    open(unit).copy_(values);
    close(unit, true);
  }
};

// Tensors start at zero; unit u has `elements[u]`. Only Offload::disk needs `spill`, which outlives the
// result. With `pinned`, tensors on the host use its memory, for copies from and to a GPU.
std::unique_ptr<UnitTensors> make_unit_tensors(const std::vector<int64_t>& elements, at::ScalarType dtype,
                                               at::Device device, Offload offload, SpillFile* spill,
                                               std::shared_ptr<PinnedPool> pinned = nullptr);
// Its part for Offload::disk.
std::unique_ptr<UnitTensors> make_disk_tensors(const std::vector<int64_t>& elements, at::ScalarType dtype,
                                               SpillFile& spill, std::shared_ptr<PinnedPool> pinned);

}  // namespace trireme
