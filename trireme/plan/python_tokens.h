// The tokens of Python source, by docs.python.org/3/reference/lexical_analysis.html. Comments, white space and ends of
// line within brackets are none.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trireme {

struct PythonToken {
  enum class Kind { name, number, text, symbol, line_end };

  Kind kind{};
  size_t begin = 0, end = 0;  // bytes of the source
  int depth = 0;              // of the brackets around it
};

// The last is a line's end. Throws DataError that names the line: a string or a bracket without its end, too many
// brackets in one another.
std::vector<PythonToken> python_tokens(const std::string& text, const std::string& file);

}  // namespace trireme
