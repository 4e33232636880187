// Every operator without a kernel for this device comes to run_on_cpu: tensors on the device become CPU
// tensors on the same bytes, the CPU's kernel runs, and what it returns becomes: an argument again, a view of
// one, or a new device tensor.
#include "tests/support/guarded_device.h"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "tests/support/guarded_memory.h"
#include "tests/support/guarded_streams.h"

namespace trireme::testing {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

thread_local int64_t blocking_copies = 0;  // bytes
thread_local int64_t reads_of_host = 0;

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                         std::optional<bool> /*pinned*/) {
  return at::detail::empty_strided_generic(sizes, strides, &guarded_memory(), kKeys,
                                           dtype.value_or(at::kFloat));
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                 std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &guarded_memory(), kKeys, dtype.value_or(at::kFloat), format);
}

bool is_guarded(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == guarded_device().type();
}

}  // namespace

at::Tensor as_cpu_tensor(const at::Tensor& tensor) {
  if (!is_guarded(tensor)) return tensor;
  const auto options = at::TensorOptions(at::kCPU).dtype(tensor.dtype());
  const c10::Storage& storage = tensor.storage();
  if (storage.nbytes() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  void* const bytes = guarded_memory().seen_by_operators(storage.data());
  const at::Tensor whole = at::from_blob(bytes, {static_cast<int64_t>(storage.nbytes())},
                                         at::TensorOptions(at::kCPU).dtype(at::kByte));
  return at::empty({0}, options)
      .set_(whole.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

namespace {

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(std::move(storage));
  impl.set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

// The same memory, which nobody keeps for a copy that is yet to happen.
at::Tensor unowned(const at::Tensor& tensor) {
  if (is_guarded(tensor)) return as_cpu_tensor(tensor);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options());
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (non_blocking) {
    queue_on_current_stream([target = unowned(to), source = unowned(from)] { target.copy_(source); });
  } else {
    if (is_guarded(from) != is_guarded(to)) blocking_copies += static_cast<int64_t>(from.nbytes());
    if (is_guarded(from) && !is_guarded(to)) ++reads_of_host;
    finish_current_stream();
    as_cpu_tensor(to).copy_(as_cpu_tensor(from));
  }
  return to;
}

// Every tensor in `value` becomes f of it.
template <typename F>
void change_tensors(c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    value = f(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> list = value.toTensorVector();
    for (at::Tensor& tensor : list) tensor = f(tensor);
    value = list;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(f(*tensor)) : std::nullopt);
    value = list;
  }
}

// One call's tensors, on the device and as the CPU's kernel sees them.
class Arguments {
 public:
  explicit Arguments(const c10::OperatorHandle& op) : op_(op) {}

  void replace(c10::IValue& value) {
    change_tensors(value, [this](const at::Tensor& tensor) { return take(tensor); });
    if (value.isDevice()) value = c10::Device(c10::DeviceType::CPU);
  }

  void check_one_device() const {
    TORCH_CHECK(!host_ || taken_.empty(), op_.schema().name(),
                ": expected all tensors to be on the same device, but found one of ", host_sizes_,
                " on the CPU and one of ", taken_.empty() ? at::IntArrayRef() : taken_.front().first.sizes(),
                " on the guarded device");
  }

  // Of the CPU's kernel, turned back.
  void give_back(c10::IValue& value) {
    change_tensors(value, [this](const at::Tensor& tensor) { return give_back(tensor); });
  }

  // Outputs that came empty and that the kernel gave a size.
  void give_back_sizes() {
    for (const auto& [device, cpu] : taken_) {
      if (device.sizes() == cpu.sizes() && device.strides() == cpu.strides()) continue;
      TORCH_CHECK(device.storage().nbytes() == 0, op_.schema().name(),
                  ": cannot resize on the guarded device");
      at::Tensor larger = to_device(cpu);
      device.unsafeGetTensorImpl()->set_storage_keep_dtype(larger.storage());
      device.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
    }
  }

 private:
  at::Tensor take(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!is_guarded(tensor)) {
      if (tensor.dim() > 0) host_ = true, host_sizes_ = tensor.sizes().vec();
      return tensor;
    }
    taken_.emplace_back(tensor, as_cpu_tensor(tensor));
    return taken_.back().second;
  }

  static at::Tensor to_device(const at::Tensor& cpu) {
    at::Tensor device = at::empty_strided(cpu.sizes(), cpu.strides(), cpu.options().device(guarded_device()));
    as_cpu_tensor(device).copy_(cpu);
    return device;
  }

  at::Tensor give_back(const at::Tensor& result) const {
    if (!result.defined() || is_guarded(result)) return result;
    for (const auto& [device, cpu] : taken_)
      if (cpu.is_same(result)) return device;
    const void* const bytes = result.storage().data();
    if (bytes == nullptr || !guarded_memory().is_seen_by_operators(bytes)) return to_device(result);
    for (const auto& [device, cpu] : taken_) {
      if (cpu.storage().data() != bytes) continue;
      at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, c10::Storage(device.storage()), device.key_set(), result.dtype());
      view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(),
                                                        result.storage_offset());
      return view;
    }
    TORCH_CHECK(false, op_.schema().name(), " returned memory of none of its arguments");
  }

  const c10::OperatorHandle& op_;
  std::vector<std::pair<at::Tensor, at::Tensor>> taken_;
  bool host_ = false;
  std::vector<int64_t> host_sizes_;
};

// Operators of CUDA that wait for their result, a value or a size that the host has to know.
bool waits_for_its_result(const std::string& name) {
  static const std::set<std::string> kNames{"aten::_local_scalar_dense",
                                            "aten::nonzero",
                                            "aten::masked_select",
                                            "aten::equal",
                                            "aten::_unique2",
                                            "aten::unique_dim",
                                            "aten::bincount",
                                            "aten::histc",
                                            "aten::repeat_interleave.Tensor"};
  return kNames.contains(name);
}

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  finish_current_stream();
  if (waits_for_its_result(op.schema().name())) ++reads_of_host;
  Arguments arguments(op);
  const size_t first = stack->size() - op.schema().arguments().size();
  for (size_t at = first; at < stack->size(); ++at) arguments.replace((*stack)[at]);
  arguments.check_one_device();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (size_t at = stack->size() - op.schema().returns().size(); at < stack->size(); ++at)
    arguments.give_back((*stack)[at]);
  arguments.give_back_sizes();
}

}  // namespace

int64_t blocking_copy_bytes() {
  return blocking_copies;
}

int64_t host_reads() {
  return reads_of_host;
}

c10::Device guarded_device() {
  static const bool registered = [] {
    c10::SetAllocator(c10::DeviceType::PrivateUse1, &guarded_memory());
    return true;
  }();
  static_cast<void>(registered);
  return {c10::DeviceType::PrivateUse1, 0};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("_copy_from", &copy_from);
}

}  // namespace trireme::testing
