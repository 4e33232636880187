// The thread that is being played, for the checks of memory.
#pragma once

#include <string>

#include "trireme/kernels/gpu_code.h"

namespace trireme::played {

// Use of an element by the thread that runs now.
Use present_use();

// Whether something that every thread waits for lies between `before` and `now`.
bool ordered(const Use& before, const Use& now);

// `reads` after one more by `now`.
Use with_reader(const Use& reads, const Use& now);

// "block 3, thread 7".
std::string present_thread();
std::string name_of(const Use& use);

}  // namespace trireme::played
