// Program options that save memory, the largest saving first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/device/memory_category.h"

namespace trireme {

// Whether an option changes how a run is done, or what the user asked it to do.
enum class MemoryOptionKind : uint8_t { policy, smaller_task };

struct MemoryOption {
  std::string option;                       // "--recompute full"
  MemoryCategory category;                  // that the option reduces
  double saved_share = 0;                   // of that category's bytes, in [0, 1]
  int64_t peak_bytes = 0;                   // of the category in a step, where known
  MemorySpace space = MemorySpace::device;  // that the option reduces
  MemoryOptionKind kind = MemoryOptionKind::policy;
};

inline constexpr const char* kUpdateInBackwardAdvice =
    "--update_in_backward (with --max_grad_norm 0, without accumulation or fp16)";

// For a run of which nothing is known: every option, with the share that it saves of a usual model's
// category. The engine replaces them by those that its run does not use yet, with shares from the byte
// formulas (forecast/memory_forecast.h).
std::vector<MemoryOption> usual_memory_options();

// "--recompute full (saves about 3.0 GiB of activations), ...": at most five policies, the largest saving
// first, without savings below a hundredth of the first. What makes the task smaller comes after them: "; or
// a smaller task: --max_seq_length 1024 (...)". A saving is a share of the bytes held now or at the peak.
// Empty if nothing would help. All `options` are of the same MemorySpace as `held`.
std::string memory_advice(const MemoryBytes& held, const std::vector<MemoryOption>& options);

// "parameters 1.2 GiB, optimizer 3.4 GiB", without those that hold nothing; plan/memory_error.cpp reads it in
// messages.
std::string categories_text(const MemoryBytes& bytes);

// The message of a failed allocation: the category and the bytes requested, the bytes of each category, and
// the advice. `held` excludes the failed allocation.
std::string out_of_memory_message(const char* where, MemoryCategory category, int64_t asked_bytes,
                                  const MemoryBytes& held, const std::vector<MemoryOption>& options);

}  // namespace trireme
