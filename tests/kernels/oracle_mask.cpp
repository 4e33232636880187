#include "tests/kernels/oracle_mask.h"

namespace trireme_test {

using namespace trireme;

std::vector<std::vector<int64_t>> document_of_token(const std::vector<std::vector<int64_t>>& cu_seqlens) {
  std::vector<std::vector<int64_t>> samples;
  samples.reserve(cu_seqlens.size());
  for (const std::vector<int64_t>& cuts : cu_seqlens) {
    std::vector<int64_t> documents;
    for (size_t i = 1; i < cuts.size(); ++i)
      documents.insert(documents.end(), cuts[i] - cuts[i - 1], static_cast<int64_t>(i));
    samples.push_back(documents);
  }
  return samples;
}

OracleMask oracle_mask(const LayerMask& mask, const std::vector<std::vector<int64_t>>& cu_seqlens) {
  return {mask.causality == Causality::causal,
          mask.window,
          document_of_token(cu_seqlens),
          mask.sparse.block_tokens,
          mask.sparse.local_blocks,
          mask.sparse.global_blocks,
          mask.sparse.stride_blocks};
}

std::vector<Documents> documents_from(const std::vector<std::vector<int64_t>>& cu_seqlens) {
  std::vector<Documents> documents;
  documents.reserve(cu_seqlens.size());
  for (const std::vector<int64_t>& cuts : cu_seqlens) documents.emplace_back(cuts);
  return documents;
}

at::Tensor tokens_of(const TokenSpans& spans) {
  std::vector<at::Tensor> parts{at::empty({0}, at::kLong)};
  for (const TokenSpan& span : spans) parts.push_back(at::arange(span.begin, span.end, at::kLong));
  return at::cat(parts, 0);
}

}  // namespace trireme_test
