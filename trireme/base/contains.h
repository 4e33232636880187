// Whether a list has a value, as std::ranges::contains of C++23.
#pragma once

#include <algorithm>
#include <iterator>

namespace trireme {

template <typename Range, typename Value>
bool contains(const Range& range, const Value& value) {
  return std::ranges::find(range, value) != std::ranges::end(range);
}

}  // namespace trireme
