// The answer to "it does not fit": what the message of the run says and why, what fills the memory, and the
// sets of changes.
//
//   the message if there is one (memory_error.h), the step that was told, its hardware
//     -> explain_memory -> text (memory_answer_text.h) or JSON (memory_answer_json.h)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/device/memory_category.h"
#include "trireme/plan/memory_change_sets.h"
#include "trireme/plan/memory_error_causes.h"

namespace trireme {

struct CategoryBytes {
  MemoryCategory category{};
  int64_t bytes = 0;
};

// What fills the memory of a planned step when it is fullest: category by category, the largest first.
struct MemoryShortage {
  std::string fullest_moment;         // "backward of layer 31: attention"
  std::vector<CategoryBytes> device;  // of a rank, at that moment
  std::vector<CategoryBytes> host;    // of the ranks of a machine
};

MemoryShortage memory_shortage(const PlannedStep& step, int64_t machine_ranks);

struct MemoryAnswer {
  std::optional<MemoryError> error;  // where there was a message
  std::vector<MemoryErrorCause> causes;
  MemoryShortage shortage;
  MemoryChanges changes;
};

// Throws ConfigError as step_time does.
MemoryAnswer explain_memory(const PlannedStep& step, const HardwareProfile& hardware,
                            const TensorLimits& limits, const std::optional<MemoryError>& error,
                            const ChangesAllowed& allowed = {});

}  // namespace trireme
