#include "trireme/attention/gathered_keys.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/memory_account.h"

namespace trireme {

namespace {

// A span of the sample, and where its rows lie when those of all ring ranks follow each other.
struct GatheredSpan {
  TokenSpan span;
  int64_t row = 0;
};

// In the order of ring ranks.
std::vector<GatheredSpan> gathered_spans(const SampleLayout& layout) {
  std::vector<GatheredSpan> spans;
  int64_t row = 0;
  for (int rank = 0; rank < layout.ring; ++rank)
    for (const TokenSpan& span : layout.ring_spans(rank)) {
      spans.push_back({span, row});
      row += span.size();
    }
  return spans;
}

std::vector<int64_t> rows_of_ranks(const SampleLayout& layout) {
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(layout.ring));
  for (int rank = 0; rank < layout.ring; ++rank) rows.push_back(layout.ring_tokens(rank));
  return rows;
}

// k and v [B, n, K, D] of this ring rank -> [S, B, 2K, D] of all, by position.
at::Tensor gather(Group& ring, const SampleLayout& layout, const at::Tensor& k, const at::Tensor& v) {
  const MemoryScope scope(MemoryCategory::communication);
  const at::Tensor kv = at::cat({k.transpose(0, 1), v.transpose(0, 1)}, 2).contiguous();
  const at::Tensor by_rank = all_gather(ring, kv, rows_of_ranks(layout));
  std::vector<GatheredSpan> spans = gathered_spans(layout);
  std::sort(spans.begin(), spans.end(),
            [](const GatheredSpan& a, const GatheredSpan& b) { return a.span.begin < b.span.begin; });
  std::vector<at::Tensor> blocks;
  blocks.reserve(spans.size());
  for (const auto& [span, row] : spans) blocks.push_back(by_rank.narrow(0, row, span.size()));
  return blocks.empty() ? by_rank : at::cat(blocks, 0);
}

// The adjoint: dk and dv [B, S, K, D] by position -> [n, B, 2K, D] of this ring rank, summed over all.
at::Tensor scatter(Group& ring, const SampleLayout& layout, const at::Tensor& dk, const at::Tensor& dv) {
  const MemoryScope scope(MemoryCategory::communication);
  const at::Tensor all = at::cat({dk.transpose(0, 1), dv.transpose(0, 1)}, 2);
  std::vector<at::Tensor> blocks;
  for (const auto& [span, row] : gathered_spans(layout))
    blocks.push_back(all.narrow(0, span.begin, span.size()));
  return reduce_scatter_sum(ring, blocks.empty() ? all : at::cat(blocks, 0), rows_of_ranks(layout));
}

}  // namespace

std::string GatheredKeys::name() const {
  return cat("keys gathered from ", ring_.size(), " over ", local_.name());
}

AttentionOutput GatheredKeys::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const SequenceSpec& spec) {
  const at::NoGradGuard no_grad;
  const at::Tensor all = gather(ring_, spec.mask.layout, k, v).transpose(0, 1);
  const int64_t heads = k.size(2);
  return local_.forward(q, all.narrow(2, 0, heads), all.narrow(2, heads, heads),
                        spec.of_all_keys(ResultDtype::of_input));
}

AttentionGradients GatheredKeys::backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionOutput& saved,
                                          const SequenceSpec& spec) {
  const at::NoGradGuard no_grad;
  const int64_t heads = k.size(2);
  at::Tensor all = gather(ring_, spec.mask.layout, k, v).transpose(0, 1);
  AttentionGradients local = local_.backward(d_o, q, all.narrow(2, 0, heads), all.narrow(2, heads, heads),
                                             saved, spec.of_all_keys(ResultDtype::fp32));
  all = at::Tensor();
  const at::Tensor dkv = scatter(ring_, spec.mask.layout, local.dk, local.dv).transpose(0, 1);
  local.dk = local.dv = at::Tensor();
  const auto dtype = spec.gradients == ResultDtype::fp32 ? local.dq.scalar_type() : q.scalar_type();
  return {local.dq.to(dtype), dkv.narrow(2, 0, heads).to(dtype).contiguous(),
          dkv.narrow(2, heads, heads).to(dtype).contiguous()};
}

}  // namespace trireme
