// What would make memory enough: options of the program, the one that saves most first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/device/memory_category.h"

namespace trireme {

struct MemoryOption {
  std::string option;                       // "--recompute full"
  MemoryCategory category;                  // that it makes smaller
  double saved_share = 0;                   // of that category's bytes, in [0, 1]
  int64_t peak_bytes = 0;                   // that the category comes to in a step, where that is known
  MemorySpace space = MemorySpace::device;  // that it makes smaller
};

// For a run of which nothing is known: every option, with the share that it saves of a usual model's
// category. The engine replaces them by those that its run does not use yet, with shares from the byte
// formulas (forecast/memory_forecast.h).
std::vector<MemoryOption> usual_memory_options();

// "--recompute full (saves about 3.0 GiB of activations), ...": shares of what is held or will be; at most `most` of
// them, the largest saving first, those under a hundredth of the first left out. Empty when nothing would help. All
// are of one memory, that `held` is of.
std::string memory_advice(const MemoryBytes& held, const std::vector<MemoryOption>& options, size_t most = 5);

// The whole message of an allocation that failed: the category and bytes asked, what each category holds,
// the advice. `held` is before the allocation.
std::string out_of_memory_message(const char* where, MemoryCategory category, int64_t asked_bytes,
                                  const MemoryBytes& held, const std::vector<MemoryOption>& options);

}  // namespace trireme
