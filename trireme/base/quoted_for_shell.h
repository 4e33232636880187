// One word of a shell's command, whatever is in it.
#pragma once

#include <string>

namespace trireme {

inline std::string quoted_for_shell(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace trireme
