#include "trireme/base/documents.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {

Documents Documents::one(int64_t tokens) {
  return Documents(tokens > 0 ? std::vector<int64_t>{0, tokens} : std::vector<int64_t>{0});
}

Documents::Documents(std::vector<int64_t> cu_seqlens) : cu_seqlens_(std::move(cu_seqlens)) {
  if (cu_seqlens_.empty() || cu_seqlens_.front() != 0)
    throw DataError(cat("cu_seqlens: expected to begin with 0, got ",
                        cu_seqlens_.empty() ? std::string("nothing") : cat(cu_seqlens_.front())));
  for (size_t i = 1; i < cu_seqlens_.size(); ++i)
    if (cu_seqlens_[i] <= cu_seqlens_[i - 1])
      throw DataError(cat("cu_seqlens: entry ", i, " is ", cu_seqlens_[i], " after ", cu_seqlens_[i - 1],
                          "; expected to grow: a document has at least one token"));
}

Documents Documents::of_positions(std::span<const int64_t> position_ids) {
  std::vector<int64_t> cu_seqlens;
  const auto tokens = static_cast<int64_t>(position_ids.size());
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t position = position_ids[static_cast<size_t>(token)];
    if (position == 0) {
      cu_seqlens.push_back(token);
    } else if (token == 0 || position < 0 || position - 1 != position_ids[static_cast<size_t>(token) - 1]) {
      throw DataError(cat("position_ids: token ", token, " has position ", position,
                          token == 0 ? std::string(" as the first")
                                     : cat(" after ", position_ids[static_cast<size_t>(token) - 1]),
                          "; expected the next one, or 0, which begins a document"));
    }
  }
  if (cu_seqlens.empty()) cu_seqlens.push_back(0);
  if (tokens > 0) cu_seqlens.push_back(tokens);
  return Documents(std::move(cu_seqlens));
}

TokenSpan Documents::at(int64_t token) const {
  TRIREME_ASSERT(token >= 0 && token < tokens(), "token ", token, " of ", tokens());
  const auto after = std::upper_bound(cu_seqlens_.begin(), cu_seqlens_.end(), token);
  return {*(after - 1), *after};
}

int64_t Documents::longest() const {
  int64_t longest = 0;
  for (size_t i = 1; i < cu_seqlens_.size(); ++i)
    longest = std::max(longest, cu_seqlens_[i] - cu_seqlens_[i - 1]);
  return longest;
}

}  // namespace trireme
