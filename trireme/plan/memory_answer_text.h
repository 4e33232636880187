// A MemoryAnswer for a terminal.
#pragma once

#include <string>

#include "trireme/plan/memory_answer.h"

namespace trireme {

// Lines with "\n", also at the end.
std::string memory_answer_text(const MemoryAnswer& answer);

}  // namespace trireme
