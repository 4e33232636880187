// Documents packed into one sample of S tokens, one after another: attention does not cross their borders, and
// positions begin again at each. Known as cu_seqlens: 0 = c[0] < c[1] < ... < c[n] = S; document i is the
// tokens [c[i], c[i + 1]). No torch here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/base/token_span.h"

namespace trireme {

class Documents {
 public:
  // One document of the whole sample (none of an empty one).
  static Documents one(int64_t tokens);
  // Throws DataError unless they begin with 0 and grow.
  explicit Documents(std::vector<int64_t> cu_seqlens);
  // From position ids: a 0 begins a document, and within one they count up by 1. Throws DataError where they do
  // neither.
  static Documents of_positions(std::span<const int64_t> position_ids);

  const std::vector<int64_t>& cu_seqlens() const { return cu_seqlens_; }
  int64_t count() const { return static_cast<int64_t>(cu_seqlens_.size()) - 1; }
  int64_t tokens() const { return cu_seqlens_.back(); }
  // The document that a token lies in.
  TokenSpan at(int64_t token) const;
  int64_t longest() const;
  // Sum of the squares of their lengths: full attention computes so many pairs.
  double squares() const;

 private:
  std::vector<int64_t> cu_seqlens_;
};

// Of one sample among those of a batch; a batch without documents has one a sample.
inline Documents documents_of(const std::vector<Documents>& batch, size_t sample, int64_t tokens) {
  return batch.empty() ? Documents::one(tokens) : batch.at(sample);
}

}  // namespace trireme
