// What every program of this tree does around its work: standard streams, defaults of libraries, and errors
// as messages and exit codes.
#pragma once

#include <functional>

namespace trireme {

// The exit code. An exception ends the process here, also one that leaves another thread.
int run_program(const std::function<int()>& program);

}  // namespace trireme
