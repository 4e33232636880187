// Over ranks as threads, against the joined whole.
#include "trireme/attention/column_exchange.h"

#include <gtest/gtest.h>

#include "trireme/attention/exchange_bytes.h"
#include "trireme/base/sample_layout.h"
#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"

namespace trireme {
namespace {

constexpr int64_t kSample_tokens = 11, kSamples = 3;
const DeltaHeads kDeltaHeads{.key = 2, .value = 4, .key_width = 3, .value_width = 5};

at::Tensor taken(const at::Tensor& whole_BSC, const std::vector<HeadRange>& spans) {
  std::vector<at::Tensor> parts;
  for (const HeadRange& span : spans) parts.push_back(whole_BSC.slice(2, span.begin, span.end));
  return at::cat(parts, 2);
}

template <typename Body>
void on_ranks(const Body& body) {
  for (const auto& [ulysses, ring] :
       {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 1}, {6, 1}, {2, 2}, {1, 3}, {3, 2}})
    run_ranks_as_threads(ulysses * ring, [&, ulysses = ulysses, ring = ring](World& world) {
      const Mesh mesh = make_mesh(world, {.ulysses = ulysses, .ring = ring});
      body(*mesh.sp, SampleLayout{kSample_tokens, ulysses, ring});
    });
}

// This rank's tokens.
at::Tensor tokens_of(const at::Tensor& whole_BSC, const SampleLayout& layout, int rank) {
  std::vector<at::Tensor> pieces{whole_BSC.narrow(1, 0, 0)};
  for (const TokenSpan& span : layout.spans(rank)) pieces.push_back(whole_BSC.slice(1, span.begin, span.end));
  return at::cat(pieces, 1);
}

TEST(ColumnExchange, gives_each_rank_its_columns_of_all_tokens) {
  const at::Tensor whole = at::randn({kSamples, kSample_tokens, kDeltaHeads.columns()});
  on_ranks([&](Group& group, const SampleLayout& layout) {
    const ColumnShares shares = delta_columns(kDeltaHeads, group.size());
    const at::Tensor got = to_columns(group, layout, shares, tokens_of(whole, layout, group.rank()));
    EXPECT_TRUE(at::equal(got, taken(whole, shares.of_rank[static_cast<size_t>(group.rank())])));
  });
}

// Each rank gives what its number and the column say, so that the sums are known, and their order in bf16 as
// well.
TEST(ColumnExchange, sums_at_the_token_what_several_ranks_have_in_their_order) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    std::vector<at::Tensor> of_rank;
    for (int rank = 0; rank < 6; ++rank)
      of_rank.push_back(at::randn({kSamples, kSample_tokens, kDeltaHeads.columns()}, at::kDouble).to(dtype));
    on_ranks([&](Group& group, const SampleLayout& layout) {
      const ColumnShares shares = delta_columns(kDeltaHeads, group.size());
      const at::Tensor expected = at::zeros({kSamples, kSample_tokens, kDeltaHeads.columns()},
                                            dtype == at::kDouble ? at::kDouble : at::kFloat);
      for (size_t rank = 0; rank < shares.of_rank.size(); ++rank)
        for (const HeadRange& span : shares.of_rank[rank])
          expected.slice(2, span.begin, span.end).add_(of_rank[rank].slice(2, span.begin, span.end));
      const auto rank = static_cast<size_t>(group.rank());
      const at::Tensor got = to_tokens(group, layout, shares, taken(of_rank[rank], shares.of_rank[rank]));
      EXPECT_TRUE(at::equal(got, tokens_of(expected.to(dtype), layout, group.rank())));
    });
  }
}

TEST(ColumnExchange, trades_the_output_back_to_the_bit) {
  const at::Tensor whole = at::randn({kSamples, kSample_tokens, kDeltaHeads.output_columns()});
  on_ranks([&](Group& group, const SampleLayout& layout) {
    const ColumnShares shares = delta_output_columns(kDeltaHeads, group.size());
    const at::Tensor tokens = tokens_of(whole, layout, group.rank());
    EXPECT_TRUE(
        at::equal(to_tokens(group, layout, shares, to_columns(group, layout, shares, tokens)), tokens));
  });
}

TEST(ColumnExchange, sends_the_bytes_of_the_formula) {
  on_ranks([&](Group& group, const SampleLayout& layout) {
    const ColumnShares columns = delta_columns(kDeltaHeads, group.size()),
                       output = delta_output_columns(kDeltaHeads, group.size());
    const UlyssesExchangeBytes formula =
        column_exchange_bytes(kDeltaHeads, layout, kSamples, 4, group.rank());
    const auto rank = static_cast<size_t>(group.rank());
    const auto expect_sent = [&](int64_t bytes, const auto& exchange) {
      group.reset_traffic();
      exchange();
      if (group.size() == 1) {
        EXPECT_TRUE(group.traffic().empty());
        return;
      }
      EXPECT_EQ(group.traffic().at("all_to_all").sent_bytes, bytes);
      EXPECT_EQ(group.traffic().at("all_to_all").calls, 1);
    };
    const auto tokens = [&](const ColumnShares& of) {
      return at::ones({kSamples, layout.size(group.rank()), of.columns});
    };
    const auto all = [&](const ColumnShares& of) {
      return at::ones({kSamples, kSample_tokens, of.count(rank)});
    };
    expect_sent(formula.qkv_to_heads, [&] { to_columns(group, layout, columns, tokens(columns)); });
    expect_sent(formula.o_to_seq, [&] { to_tokens(group, layout, output, all(output)); });
    expect_sent(formula.do_to_heads, [&] { to_columns(group, layout, output, tokens(output)); });
    expect_sent(formula.dqkv_to_seq, [&] { to_tokens(group, layout, columns, all(columns)); });
  });
}

}  // namespace
}  // namespace trireme
