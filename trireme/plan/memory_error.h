// What a pasted out-of-memory text says: the words of PyTorch 1.0 to 2.11 and of what stands below it
// (c10/cuda/CUDACachingAllocator.cpp and c10/core/impl/alloc_cpu.cpp of those versions), of launchers that
// saw a rank killed, and of Trireme (device/memory_advice.h).
//
//   text -> lines and frames (traceback.h) -> the message that says most -> its figures and who asked
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/enum_names.h"
#include "trireme/device/memory_category.h"
#include "trireme/plan/traceback.h"

namespace trireme {

// Who reported it. Earlier ones say more.
enum class MemoryErrorKind : uint8_t {
  torch_allocator,  // "CUDA out of memory. Tried to allocate 2.00 GiB ...", with figures; HIP and XPU too
  trireme,          // "out of device memory: asked for ..."
  host_allocator,   // DefaultCPUAllocator, std::bad_alloc, "Cannot allocate memory"
  nccl,             // "Cuda failure 2 'out of memory'"
  gpu_library,      // CUBLAS_STATUS_ALLOC_FAILED and its like
  pinned_host,      // a CUDA call that pins host memory
  cuda_call,        // "CUDA error: out of memory", without figures
  killed,           // by the host's kernel, most likely: exit code -9 or 137
};
constexpr auto enum_names(MemoryErrorKind) {
  using enum MemoryErrorKind;
  return std::to_array<EnumName<MemoryErrorKind>>({{torch_allocator, "torch_allocator"},
                                                   {trireme, "trireme"},
                                                   {host_allocator, "host_allocator"},
                                                   {nccl, "nccl"},
                                                   {gpu_library, "gpu_library"},
                                                   {pinned_host, "pinned_host"},
                                                   {cuda_call, "cuda_call"},
                                                   {killed, "killed"}});
}

struct MemoryError {
  MemoryErrorKind kind{};
  MemorySpace space = MemorySpace::device;
  std::string message;  // the line of the text that says it, cut to some 300 bytes
  // In bytes, where the text has them.
  std::optional<int64_t> asked;
  std::optional<int64_t> capacity;       // of the device
  std::optional<int64_t> free;           // of the device
  std::optional<int64_t> allocated;      // in tensors; of Trireme, what the rank holds
  std::optional<int64_t> unallocated;    // that PyTorch's allocator keeps beside them
  std::optional<int64_t> private_pools;  // in CUDA graphs' pools, of the allocated ones
  std::optional<int64_t> allowed;        // by set_per_process_memory_fraction
  std::optional<int64_t> process;        // of this process on the device, or killed on the host
  std::optional<int64_t> others;         // of other processes on the device, where the text lists them
  std::optional<int> gpu;
  std::optional<int> rank;
  // The last line of code that is not PyTorch's: who asked.
  std::optional<TracebackFrame> asked_by;
  // Trireme's.
  std::optional<MemoryCategory> category;
  MemoryBytes held;
};

// Throws DataError, which names `origin`, where the text has no such message.
MemoryError read_memory_error(const std::string& text, const std::string& origin);

}  // namespace trireme
