// A MemoryAnswer for programs.
#pragma once

#include "trireme/base/json.h"
#include "trireme/plan/memory_answer.h"

namespace trireme {

// {"fits", "error": {...} or null, "causes": [...], "memory": {"limits", "fullest_moment", "device", "host"},
//  "cost", "sets": [{"flags", "changes", "deepspeed", "trainer", "trireme_alone", "cost",
//  "saved_device_bytes", "added_seconds", ...}], "nearest": as a set, or null, "ranks_needed",
//  "longest_tokens"}
// Bytes, seconds and tokens as numbers; what is not known is null.
Json to_json(const MemoryAnswer& answer);

}  // namespace trireme
