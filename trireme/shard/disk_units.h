// How many units of disk_tensors.cpp are in memory at once. The memory forecast counts by it. No torch here.
#pragma once

#include <cstddef>

namespace trireme {

constexpr size_t kMostDiskWrites = 2;  // units on their way back to the disk

// With the open unit, and the next one where it is read ahead.
constexpr size_t disk_units_in_memory(bool read_ahead) {
  return kMostDiskWrites + (read_ahead ? 2 : 1);
}

}  // namespace trireme
