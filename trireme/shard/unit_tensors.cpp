#include "trireme/shard/unit_tensors.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {
namespace {

class ResidentTensors final : public UnitTensors {
 public:
  ResidentTensors(const std::vector<int64_t>& elements, const at::TensorOptions& options,
                  PinnedPool* pinned) {
    tensors_.reserve(elements.size());
    for (const int64_t count : elements)
      tensors_.push_back(pinned ? pinned->take(count, c10::typeMetaToScalarType(options.dtype())).zero_()
                                : at::zeros({count}, options));
  }
  at::Tensor open(int unit) override { return tensors_.at(static_cast<size_t>(unit)); }
  void close(int, bool) override {}
  void prefetch(int) override {}

 private:
  std::vector<at::Tensor> tensors_;
};

}  // namespace

std::unique_ptr<UnitTensors> make_unit_tensors(const std::vector<int64_t>& elements, at::ScalarType dtype,
                                               at::Device device, Offload offload, SpillFile* spill,
                                               std::shared_ptr<PinnedPool> pinned) {
  const auto options = at::TensorOptions().dtype(dtype);
  if (offload == Offload::disk) {
    TRIREME_ASSERT(spill != nullptr, "tensors on disk need a file");
    return make_disk_tensors(elements, dtype, *spill, std::move(pinned));
  }
  if (offload == Offload::none)
    return std::make_unique<ResidentTensors>(elements, options.device(device), nullptr);
  return std::make_unique<ResidentTensors>(elements, options, pinned.get());
}

}  // namespace trireme
