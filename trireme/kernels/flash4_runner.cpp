// The kernels that cmake/flash4/export_kernels.py compiled, called as TVM FFI has it (tvm/ffi/c_api.h): an
// array of tagged values, of tensors a DLTensor. What they ask of TVM FFI and of the DSL's runtime is here: to
// tell an error, and the stream. So neither library is loaded.
#include "trireme/kernels/flash4_runner.h"

#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <tvm/ffi/c_api.h>
#include <vector>

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "trireme/base/error.h"
#include "trireme/kernels/flash4_sizes.h"

namespace trireme::flash4 {
namespace {

constexpr int kHopper = 9;  // major compute capability

struct RaisedError {
  std::string words;
  cudaError_t of_cuda = cudaSuccess;
};
RaisedError& raised_error() {
  thread_local RaisedError error;
  return error;
}

using Kernel = int (*)(void* handle, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result);

// What an object passes to the runtime before its first launch: `load` readies its kernels on one GPU.
using LoadToDevice = int (*)(void** library, int device);
struct LoadedObject {
  LoadToDevice load = nullptr;
  void* library = nullptr;
  std::set<int> devices;
};
// By the object's own mark; of a process, as what CUDA has loaded is.
struct LoadedObjects {
  std::mutex mutex;
  std::map<void*, LoadedObject> objects;
};
LoadedObjects& loaded_objects() {
  static LoadedObjects loaded;
  return loaded;
}
thread_local LoadedObject* object_being_loaded = nullptr;

// Below no error is thrown, for the objects call.
int current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

int load_to_current_device(void** library, int device) {
  object_being_loaded->library = *library;
  return device == current_device() ? object_being_loaded->load(library, device) : 0;
}

}  // namespace

extern "C" {
// By these names and signatures the kernels call them; hidden, for a process may load TVM FFI as well.
#define TRIREME_HIDDEN __attribute__((visibility("hidden")))
TRIREME_HIDDEN void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  raised_error().words = cat(kind, ": ", message);
}
TRIREME_HIDDEN void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  raised_error().words = cat(kind, ": ");
  for (int32_t i = 0; i < count; ++i)
    if (parts[i] != nullptr) raised_error().words += parts[i];
}
TRIREME_HIDDEN void CuteDSLRT_TVMFFISetRaisedCudaError(void (* /*set*/)(const char*, const char**, int32_t),
                                                       int32_t code) {
  raised_error().of_cuda = static_cast<cudaError_t>(code);
}
TRIREME_HIDDEN void* TVMFFIEnvGetStream(int32_t /*device_type*/, int32_t device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}
// The linker gives the objects this one in place of the runtime's (cmake/TriremeFlash4.cmake), which readies
// the kernels on every GPU that the process sees: a rank has one of them, and another may be too old.
int __real_cuda_dialect_init_library_once(void* mark, void* init, LoadToDevice load, void* set_error);
TRIREME_HIDDEN int __wrap_cuda_dialect_init_library_once(void* mark, void* init, LoadToDevice load,
                                                         void* set_error) {
  LoadedObjects& loaded = loaded_objects();
  const std::scoped_lock lock(loaded.mutex);
  LoadedObject& object = loaded.objects[mark];
  const int device = current_device();
  if (object.devices.contains(device)) return 0;
  int status = 0;
  if (object.library == nullptr) {
    object.load = load;
    object_being_loaded = &object;
    status = __real_cuda_dialect_init_library_once(mark, init, load_to_current_device, set_error);
  } else {
    status = load(&object.library, device);
  }
  if (status == 0) object.devices.insert(device);
  return status;
}
#undef TRIREME_HIDDEN

// TRIREME_FLASH4(width, group) for each pair that the build compiled.
#define TRIREME_FLASH4_NAME(width, group, pass, mask) \
  __tvm_ffi_trireme_flash4_w##width##_g##group##_##pass##_##mask
#define TRIREME_FLASH4_DECLARE(name) int name(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
#define TRIREME_FLASH4(width, group)                                          \
  TRIREME_FLASH4_DECLARE(TRIREME_FLASH4_NAME(width, group, forward, causal))  \
  TRIREME_FLASH4_DECLARE(TRIREME_FLASH4_NAME(width, group, forward, full))    \
  TRIREME_FLASH4_DECLARE(TRIREME_FLASH4_NAME(width, group, backward, causal)) \
  TRIREME_FLASH4_DECLARE(TRIREME_FLASH4_NAME(width, group, backward, full))
#include <flash4_kernels.inc>
#undef TRIREME_FLASH4
#undef TRIREME_FLASH4_DECLARE
}

namespace {

struct Compiled {
  int64_t width, group;
  Kernel forward_causal, forward_full, backward_causal, backward_full;
};
constexpr Compiled kCompiled[] = {
#define TRIREME_FLASH4(width, group)                    \
  {width,                                               \
   group,                                               \
   TRIREME_FLASH4_NAME(width, group, forward, causal),  \
   TRIREME_FLASH4_NAME(width, group, forward, full),    \
   TRIREME_FLASH4_NAME(width, group, backward, causal), \
   TRIREME_FLASH4_NAME(width, group, backward, full)},
#include <flash4_kernels.inc>
#undef TRIREME_FLASH4
#undef TRIREME_FLASH4_NAME
};
static_assert(std::size(kCompiled) == kFlash4Widths.size() * kFlash4MostGroup,
              "cmake/TriremeFlash4.cmake compiles other widths or groups than flash4_sizes.h has");

const Compiled& compiled_for(const at::Tensor& q, const at::Tensor& k) {
  for (const Compiled& known : kCompiled)
    if (known.width == q.size(3) && known.group * k.size(2) == q.size(2)) return known;
  throw InternalError(cat("FlashAttention-4: got ", q.size(2), " query heads of ", k.size(2),
                          " key/value heads, ", q.size(3), " wide, for which none was compiled"));
}

class Arguments {
 public:
  void add(const at::Tensor& tensor) {
    const uint8_t bits = 8 * tensor.element_size();
    DLTensor& described = tensors_.emplace_back();
    described.data = tensor.data_ptr();
    described.device = {kDLCUDA, tensor.get_device()};
    described.ndim = static_cast<int32_t>(tensor.dim());
    described.dtype = {static_cast<uint8_t>(bits == 32 ? kDLFloat : kDLBfloat), bits, 1};
    described.shape = const_cast<int64_t*>(tensor.sizes().data());
    described.strides = const_cast<int64_t*>(tensor.strides().data());
    append(kTVMFFIDLTensorPtr).v_ptr = &described;
  }
  void call(Kernel kernel, double scale, const at::Device& device) {
    append(kTVMFFIFloat).v_float64 = scale;
    append(kTVMFFIOpaquePtr).v_ptr = c10::cuda::getCurrentCUDAStream(device.index()).stream();
    TVMFFIAny result{};
    raised_error() = {};
    if (kernel(nullptr, values_.data(), static_cast<int32_t>(values_.size()), &result) == 0) return;
    C10_CUDA_CHECK(raised_error().of_cuda);
    throw InternalError(cat("FlashAttention-4: ", raised_error().words));
  }

 private:
  TVMFFIAny& append(int32_t type) {
    TVMFFIAny& value = values_.emplace_back();
    value = {};
    value.type_index = type;
    return value;
  }
  std::deque<DLTensor> tensors_;
  std::vector<TVMFFIAny> values_;
};

class CompiledFlash4 final : public Flash4Runner {
 public:
  void forward(const Flash4Forward& tensors, double scale, bool causal) override {
    const auto& [q, k, v, o, lse] = tensors;
    const Compiled& compiled = compiled_for(q, k);
    Arguments arguments;
    for (const at::Tensor* tensor : {&q, &k, &v, &o, &lse}) arguments.add(*tensor);
    arguments.call(causal ? compiled.forward_causal : compiled.forward_full, scale, q.device());
  }

  void backward(const Flash4Backward& tensors, double scale, bool causal) override {
    const auto& [d_o, q, k, v, o, lse, dq, dk, dv, dq_sum, dk_sum, dv_sum, delta, lse_log2] = tensors;
    const Compiled& compiled = compiled_for(q, k);
    Arguments arguments;
    for (const at::Tensor* tensor :
         {&d_o, &q, &k, &v, &o, &lse, &dq, &dk, &dv, &dq_sum, &dk_sum, &dv_sum, &delta, &lse_log2})
      arguments.add(*tensor);
    arguments.call(causal ? compiled.backward_causal : compiled.backward_full, scale, q.device());
  }
};

}  // namespace
}  // namespace trireme::flash4

namespace trireme {

std::string flash4_lacks() {
  if (!at::hasCUDA()) return "libtorch finds no GPU here";
  const cudaDeviceProp* device = at::cuda::getCurrentDeviceProperties();
  if (device->major != flash4::kHopper)
    return cat("got a GPU of compute capability ", device->major, ".", device->minor, ", expected 9.x");
  return {};
}

std::unique_ptr<Flash4Runner> make_flash4_runner() {
  if (const std::string lacks = flash4_lacks(); !lacks.empty())
    throw ConfigError(
        cat("attention kernel 'flash4': ", lacks, "; use --attention auto or --attention flash"));
  return std::make_unique<flash4::CompiledFlash4>();
}

}  // namespace trireme
