// A list as text: "1, 2, 3".
#pragma once

#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

// `text_of`: what to write of an element, itself unless told otherwise.
template <typename Range, typename TextOf = std::identity>
std::string joined(const Range& range, std::string_view separator = ", ", TextOf text_of = {}) {
  std::ostringstream out;
  bool first = true;
  for (const auto& element : range)
    out << (std::exchange(first, false) ? "" : separator) << std::invoke(text_of, element);
  return out.str();
}

}  // namespace trireme
