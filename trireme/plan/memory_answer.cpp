#include "trireme/plan/memory_answer.h"

namespace trireme {

MemoryAnswer explain_memory(const PlannedStep& step, const HardwareProfile& hardware,
                            const TensorLimits& limits, const std::optional<MemoryError>& error,
                            const ChangesAllowed& allowed) {
  MemoryAnswer answer{error, {}, {}, find_memory_changes(step, hardware, limits, allowed)};
  answer.shortage = memory_shortage(answer.changes.step, answer.changes.limits);
  if (error)
    answer.causes = memory_error_causes(*error, {step.inputs, limits.device_bytes, hardware.memory_bytes});
  return answer;
}

}  // namespace trireme
