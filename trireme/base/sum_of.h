// Counts added up.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>

namespace trireme {

inline int64_t sum_of(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace trireme
