#include "trireme/data/token_positions.h"

namespace trireme {

at::Tensor positions_in_documents(const TokenBatch& batch, int rank) {
  const TokenSpans spans = batch.layout.spans(rank);
  const int64_t samples = batch.tokens.size(0);
  at::Tensor positions = at::empty({samples * size_of(spans)}, at::kLong);
  auto* to = positions.mutable_data_ptr<int64_t>();
  for (int64_t sample = 0; sample < samples; ++sample) {
    const Documents documents =
        documents_of(batch.documents, static_cast<size_t>(sample), batch.layout.tokens);
    for (const TokenSpan& span : spans) {
      TokenSpan document;
      for (int64_t token = span.begin; token < span.end; ++token) {
        if (token >= document.end) document = documents.at(token);
        *to++ = token - document.begin;
      }
    }
  }
  return positions;
}

}  // namespace trireme
