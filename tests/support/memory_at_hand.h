// Whether the memory that a large test needs is there; a test that began without it would take its machine
// along.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/device/host_memory_limit.h"

namespace trireme::testing {

// What this process may use, and of that what nobody else uses now.
inline int64_t memory_at_hand_bytes() {
  int64_t bytes = host_memory_limit_bytes();
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("MemAvailable:")) {
      int64_t kib = 0;
      if (std::istringstream(line.substr(13)) >> kib) bytes = std::min(bytes, kib * 1024);
    }
  return bytes;
}

// Empty, or why a test that needs `bytes` is to be skipped.
inline std::string lack_of_memory(int64_t bytes) {
  const int64_t at_hand = memory_at_hand_bytes();
  return at_hand >= bytes
             ? std::string()
             : cat("needs ", format_bytes(bytes), " of memory, and ", format_bytes(at_hand), " are at hand");
}

}  // namespace trireme::testing
