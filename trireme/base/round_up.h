// Sizes in whole units: blocks, pages, rows of a kernel.
#pragma once

#include <cstdint>

namespace trireme {

// The least multiple of `unit` that is no less than `value`, both not negative.
constexpr int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace trireme
