// What a first run of a new configuration is to show, as guides ask for it (trireme validate, a plan's spec).
#pragma once

#include <cstdint>

namespace trireme {

inline constexpr int64_t kSmokeTokens = 32768;        // of a sample of a smoke test
inline constexpr double kFirstRunMemoryShare = 0.75;  // of a device's memory, at most

}  // namespace trireme
