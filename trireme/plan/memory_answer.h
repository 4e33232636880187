// The answer to "it does not fit": what the message of the run says and why, what fills the memory, and the
// sets of changes.
//
//   the message if there is one (memory_error.h), the step that was told, its hardware
//     -> explain_memory -> text or JSON (memory_answer_text.h)
#pragma once

#include <optional>
#include <vector>

#include "trireme/plan/memory_error_causes.h"
#include "trireme/plan/memory_shortage.h"

namespace trireme {

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
