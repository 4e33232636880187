// The words of a list: "a,b,c".
#pragma once

#include <string>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

// "a,,b" -> "a", "", "b"; "a," -> "a", ""; an empty text -> one empty word.
inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

// Throws ConfigError, which names `flag`, where nothing stands before, behind or between two commas.
inline std::vector<std::string> split_at_commas(const std::string& text, const std::string& flag) {
  std::vector<std::string> words = split(text, ',');
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i].empty())
      throw ConfigError(cat(flag, " is '", quotation(text), "': entry ", i + 1, " of ", words.size(),
                            " is empty; leave out the comma beside it"));
  return words;
}

}  // namespace trireme
