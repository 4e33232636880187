#include "trireme/shard/unit_tensors.h"

#include "trireme/base/error.h"
#include "trireme/shard/disk_tensors.h"

namespace trireme {
namespace {

class ResidentTensors final : public UnitTensors {
 public:
  ResidentTensors(const std::vector<int64_t>& elements, const at::TensorOptions& options, bool pinned) {
    for (const int64_t count : elements) {
      at::Tensor values = at::zeros({count}, options);
      tensors_.push_back(pinned ? values.pin_memory() : values);
    }
  }
  at::Tensor open(int unit) override { return tensors_.at(static_cast<size_t>(unit)); }
  void close(int, bool) override {}
  void prefetch(int) override {}

 private:
  std::vector<at::Tensor> tensors_;
};

}  // namespace

std::unique_ptr<UnitTensors> make_unit_tensors(const std::vector<int64_t>& elements, at::ScalarType dtype,
                                               at::Device device, Offload place, SpillFile* spill) {
  const auto options = at::TensorOptions().dtype(dtype);
  if (place == Offload::disk) {
    TRIREME_ASSERT(spill != nullptr, "tensors on disk need a file");
    return std::make_unique<DiskTensors>(elements, dtype, *spill);
  }
  if (place == Offload::cpu)
    return std::make_unique<ResidentTensors>(elements, options.device(at::kCPU), !device.is_cpu());
  return std::make_unique<ResidentTensors>(elements, options.device(device), false);
}

}  // namespace trireme
