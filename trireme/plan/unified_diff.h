// Edits of a text as a unified diff, which `patch -p1` and `git apply` take.
#pragma once

#include <string>
#include <vector>

namespace trireme {

struct TextEdit {
  size_t begin = 0, end = 0;  // bytes that are replaced
  std::string text;
};

// Edits do not overlap; those at one byte stay in their order.
std::string with_edits(const std::string& text, std::vector<TextEdit> edits);
// Three lines of context; empty: nothing changes.
std::string unified_diff(const std::string& file, const std::string& text, std::vector<TextEdit> edits);

}  // namespace trireme
