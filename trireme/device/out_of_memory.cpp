#include "trireme/device/out_of_memory.h"

#include <vector>

#include "trireme/device/memory_account.h"
#include "trireme/device/memory_advice.h"

namespace trireme {

void throw_out_of_memory(const char* where, MemorySpace space, int64_t asked_bytes, int64_t in_use_bytes,
                         const std::string& detail) {
  const MemoryPlace& place = MemoryScope::here();
  MemoryBytes held;
  held[MemoryCategory::other] = in_use_bytes;
  std::vector<MemoryOption> options = usual_memory_options();
  if (place.account != nullptr) {
    held = place.account->held(space);
    options = place.account->options(space);
  }
  const std::string message = out_of_memory_message(where, place.category, asked_bytes, held, options);
  throw ConfigError(detail.empty() ? message : cat(message, ". ", detail));
}

ConfigError out_of_memory_error(const c10::OutOfMemoryError& error) {
  return ConfigError(cat("out of device memory: ", error.what_without_backtrace(),
                         "; what would help: a shorter --max_seq_length, more ranks, --recompute full, "
                         "--offload_activations cpu, --offload_optimizer cpu"));
}

}  // namespace trireme
