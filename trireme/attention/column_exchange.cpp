#include "trireme/attention/column_exchange.h"

#include <algorithm>

#include "trireme/attention/head_exchange.h"
#include "trireme/device/memory_account.h"

namespace trireme {
namespace {

struct Piece {
  int64_t sample_begin, rank_begin, tokens;
};
// In the order in which ranks hold them.
std::vector<Piece> pieces_of(const SampleLayout& layout) {
  std::vector<Piece> pieces;
  int64_t held = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank)
    for (const TokenSpan& span : layout.spans(rank)) {
      pieces.push_back({span.begin, held, span.size()});
      held += span.size();
    }
  return pieces;
}

// The pieces, which begin in x at `begin`, one behind the other.
at::Tensor cat_pieces(const at::Tensor& x_BSc, const std::vector<Piece>& pieces, int64_t Piece::*begin) {
  std::vector<at::Tensor> parts;
  parts.reserve(pieces.size());
  for (const Piece& piece : pieces) parts.push_back(x_BSc.narrow(1, piece.*begin, piece.tokens));
  return at::cat(parts, 1);
}
// As ranks hold them, one behind the other, <-> in the order of the sample.
at::Tensor in_order_of_sample(const at::Tensor& x_BSc, const SampleLayout& layout) {
  if (layout.ring == 1) return x_BSc;
  std::vector<Piece> pieces = pieces_of(layout);
  std::ranges::sort(pieces, {}, &Piece::sample_begin);
  return cat_pieces(x_BSc, pieces, &Piece::rank_begin);
}
at::Tensor in_order_of_ranks(const at::Tensor& x_BSc, const SampleLayout& layout) {
  return layout.ring == 1 ? x_BSc : cat_pieces(x_BSc, pieces_of(layout), &Piece::sample_begin);
}

SequenceLayout shares_of(const SampleLayout& layout) {
  if (layout.ring == 1) return layout.within(0);
  SequenceLayout shares{layout.tokens, layout.ranks(), {}};
  for (int rank = 0; rank < layout.ranks(); ++rank) shares.given.push_back(layout.size(rank));
  return shares;
}

}  // namespace

at::Tensor to_columns(Group& group, const SampleLayout& layout, const ColumnShares& shares,
                      const at::Tensor& x_BsC) {
  if (group.size() == 1) return x_BsC;
  // A column is a head of one value.
  std::vector<std::vector<at::Tensor>> slices;
  for (const std::vector<HeadRange>& spans : shares.of_rank) {
    std::vector<at::Tensor>& of_rank = slices.emplace_back();
    for (const HeadRange& span : spans) of_rank.push_back(x_BsC.slice(2, span.begin, span.end).unsqueeze(3));
  }
  return in_order_of_sample(begin_slices_to_heads(group, shares_of(layout), slices).wait().squeeze(3),
                            layout);
}

at::Tensor to_tokens(Group& group, const SampleLayout& layout, const ColumnShares& shares,
                     const at::Tensor& x_BSc) {
  if (group.size() == 1) return x_BSc;
  std::vector<int64_t> counts;
  for (size_t rank = 0; rank < shares.of_rank.size(); ++rank) counts.push_back(shares.count(rank));
  const std::vector<at::Tensor> blocks =
      begin_to_sequence(group, shares_of(layout), counts, in_order_of_ranks(x_BSc, layout).unsqueeze(3))
          .wait();
  const auto each_span = [&](const auto& body) {
    for (size_t p = 0; p < blocks.size(); ++p) {
      int64_t column = 0;
      for (const HeadRange& span : shares.of_rank[p]) {
        body(span, blocks[p].squeeze(3).narrow(2, column, span.size()));
        column += span.size();
      }
    }
  };
  const std::vector<int64_t> sizes{x_BSc.size(0), layout.size(group.rank()), shares.columns};
  if (shares.total() == shares.columns) {
    at::Tensor tokens = at::empty(sizes, x_BSc.options());
    each_span([&](const HeadRange& span, const at::Tensor& block) {
      tokens.slice(2, span.begin, span.end).copy_(block);
    });
    return tokens;
  }
  const auto add_up = [&](const at::Tensor& sum) {
    const MemoryScope scope(MemoryCategory::communication);  // of blocks that are widened
    each_span([&](const HeadRange& span, const at::Tensor& block) {
      sum.slice(2, span.begin, span.end).add_(block);
    });
    return sum;
  };
  if (!at::isReducedFloatingType(x_BSc.scalar_type())) return add_up(at::zeros(sizes, x_BSc.options()));
  const at::Tensor sum = [&] {
    const MemoryScope scope(MemoryCategory::communication);
    return at::zeros(sizes, x_BSc.options().dtype(at::kFloat));
  }();
  return add_up(sum).to(x_BSc.scalar_type());
}

}  // namespace trireme
