// The answer to an out-of-memory error, for a terminal and as JSON: what the message says and why, what fills
// the memory, and the sets of changes.
#pragma once

#include <optional>
#include <string>
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

// Lines with "\n", also at the end.
std::string memory_answer_text(const MemoryAnswer& answer);

// {"fits", "error": {...} or null, "causes": [...], "memory": {"limits", "fullest_moment", "device", "host"},
//  "cost", "sets": [{"flags", "changes", "deepspeed", "trainer", "trireme_alone", "cost",
//  "saved_device_bytes", "added_seconds", ...}], "nearest": as a set, or null, "ranks_needed",
//  "longest_tokens"}
// Bytes, seconds and tokens as numbers; what is not known is null.
Json to_json(const MemoryAnswer& answer);

}  // namespace trireme
