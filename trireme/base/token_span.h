// A run of a sample's tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme {

// Tokens [begin, end).
struct TokenSpan {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const TokenSpan&) const = default;
};

// Spans in ascending order that neither touch nor overlap: the tokens of a sample that one rank holds.
using TokenSpans = std::vector<TokenSpan>;

inline int64_t size_of(const TokenSpans& spans) {
  int64_t tokens = 0;
  for (const TokenSpan& span : spans) tokens += span.size();
  return tokens;
}

}  // namespace trireme
