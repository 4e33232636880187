// Text with ASCII's capitals made small, in any locale.
#pragma once

#include <string>

namespace trireme {

inline std::string lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace trireme
