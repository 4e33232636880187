#include "trireme/device/out_of_memory.h"

#include <new>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>

#include "trireme/device/memory_account.h"
#include "trireme/device/memory_advice.h"

namespace trireme {
namespace {

// libtorch's error of a device without memory; null: another error.
const c10::Error* of_device(const std::exception& error) {
  constexpr int32_t kCudaErrorMemoryAllocation = 2;  // of pinned memory, a context, a stream
  if (const auto* memory = dynamic_cast<const c10::OutOfMemoryError*>(&error)) return memory;
  // NCCL's own: "Cuda failure 2 'out of memory'"
  if (const auto* nccl = dynamic_cast<const c10::DistBackendError*>(&error);
      nccl != nullptr && nccl->msg().find("out of memory") != std::string::npos)
    return nccl;
  if (const auto* call = dynamic_cast<const c10::AcceleratorError*>(&error))
    return call->get_error_code() == kCudaErrorMemoryAllocation ? call : nullptr;
  // cuBLAS's and cuDNN's, which libtorch tells by their names
  const auto* library = dynamic_cast<const c10::Error*>(&error);
  for (const char* status :
       {"CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"})
    if (library != nullptr && library->msg().find(status) != std::string::npos) return library;
  return nullptr;
}

}  // namespace

void throw_out_of_memory(const char* where, MemorySpace space, int64_t asked_bytes, int64_t in_use_bytes,
                         const std::string& detail) {
  const MemoryOwner& owner = MemoryScope::current();
  MemoryBytes held;
  held[MemoryCategory::other] = in_use_bytes;
  std::vector<MemoryOption> options = usual_memory_options();
  if (owner.account != nullptr) {
    held = owner.account->held(space);
    options = owner.account->options(space);
  }
  const std::string message = out_of_memory_message(where, owner.category, asked_bytes, held, options);
  throw ConfigError(detail.empty() ? message : cat(message, ". ", detail));
}

std::optional<ConfigError> as_out_of_memory(const std::exception& error) {
  const c10::Error* device = of_device(error);
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  const bool no_thread = system != nullptr && (system->code() == std::errc::resource_unavailable_try_again ||
                                               system->code() == std::errc::not_enough_memory);
  if (device == nullptr && !no_thread && dynamic_cast<const std::bad_alloc*>(&error) == nullptr)
    return std::nullopt;
  return ConfigError(cat("out of ", device != nullptr ? "device" : "host",
                         " memory: ", device != nullptr ? device->what_without_backtrace() : error.what(),
                         no_thread ? " (a thread could not be started)" : "",
                         "; what would help: more ranks a sequence (--ulysses, --ring), --recompute full, ",
                         device != nullptr ? "--offload_activations cpu, --offload_optimizer cpu"
                                           : "offload to disk, a higher limit of this process (ulimit -a)",
                         "; or a shorter --max_seq_length"));
}

}  // namespace trireme
