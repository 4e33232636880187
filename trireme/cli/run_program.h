// What every program of this tree does around its work: the process's defaults, and errors as messages and
// exit codes.
#pragma once

#include <functional>

namespace trireme {

// The exit code. An Error ends the process here.
int run_program(const std::function<int()>& program);

}  // namespace trireme
