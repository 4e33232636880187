// Documents packed one after another into one sample of S tokens. Attention does not cross their borders, and
// positions restart at 0 in each document. Known as cu_seqlens: 0 = c[0] < c[1] < ... < c[n] = S; document i
// is the tokens [c[i], c[i + 1]). No torch here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/base/token_span.h"

namespace trireme {

class Documents {
 public:
  // The whole sample as one document; none if it is empty.
  static Documents one(int64_t tokens);
  // Throws DataError unless `cu_seqlens` begins with 0 and strictly increases.
  explicit Documents(std::vector<int64_t> cu_seqlens);
  // From position ids: 0 begins a document, in which positions count up by 1. Throws DataError otherwise.
  static Documents of_positions(std::span<const int64_t> position_ids);

  const std::vector<int64_t>& cu_seqlens() const { return cu_seqlens_; }
  int64_t tokens() const { return cu_seqlens_.back(); }
  // The document that contains `token`.
  TokenSpan at(int64_t token) const;
  int64_t longest() const;
  bool operator==(const Documents&) const = default;

 private:
  std::vector<int64_t> cu_seqlens_;
};

// The documents of one sample of a batch. An empty `batch` means one document per sample.
inline Documents documents_of(const std::vector<Documents>& batch, size_t sample, int64_t tokens) {
  return batch.empty() ? Documents::one(tokens) : batch.at(sample);
}

}  // namespace trireme
