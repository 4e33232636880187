// A line of flags as the program gets it.
#pragma once

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace trireme::testing {

inline std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

}  // namespace trireme::testing
