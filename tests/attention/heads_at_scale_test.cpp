// Ulysses on head counts of models in use, most of which divide by few numbers of ranks: what travels, and
// that the result is that of one rank. The laws are restated head by head, without head_shares.h.
#include <set>

#include <gtest/gtest.h>

#include "trireme/attention/head_shares.h"
#include "trireme/attention/ulysses.h"
#include "trireme/comm/thread_world.h"

#include "tests/attention/sharded_case.h"

namespace trireme {
namespace {

using trireme_test::relative_error;
using trireme_test::ShardedCase;

struct HeadCounts {
  int64_t query, key_value;
};
const std::vector<HeadCounts> kHeadCounts{{28, 4}, {28, 28}, {40, 8}, {14, 2},
                                          {3, 3},  {3, 1},   {7, 7},  {7, 1}};
constexpr int64_t kWidth = 8, kTokens = 37;

template <typename Body>
void for_each_case(const Body& body) {
  for (const HeadCounts heads : kHeadCounts)
    for (int ranks = 2; ranks <= 8 && ranks <= heads.query; ++ranks) {
      SCOPED_TRACE(::testing::Message()
                   << heads.query << "/" << heads.key_value << " on " << ranks << " ranks");
      body(heads, ranks);
    }
}

// What a rank computes: how many query heads, and the key/value heads that these use.
struct Used {
  int64_t query = 0;
  std::set<int64_t> key_value;
  int64_t packed() const { return query + 2 * static_cast<int64_t>(key_value.size()); }
};
std::vector<Used> used_heads(HeadCounts heads, int ranks) {
  std::vector<Used> used(ranks);
  int64_t head = 0;
  for (int rank = 0; rank < ranks; ++rank)
    for (int64_t share = heads.query / ranks + (rank < heads.query % ranks ? 1 : 0); share > 0;
         --share, ++head) {
      ++used[rank].query;
      used[rank].key_value.insert(head / (heads.query / heads.key_value));
    }
  return used;
}

TEST(HeadsAtScale, ranks_equal_one_rank) {
  for (const HeadCounts heads : kHeadCounts) {
    ShardedCase c{
        .tokens = kTokens, .query_heads = heads.query, .kv_heads = heads.key_value, .width = kWidth};
    const auto in = trireme_test::draw_inputs(c, 1);
    const auto truth = trireme_test::truth_of(c, in);
    for (int ranks = 2; ranks <= 8 && ranks <= heads.query; ++ranks)
      for (const int head_chunks : {1, 3}) {
        c.ulysses = ranks;
        c.head_chunks = head_chunks;
        SCOPED_TRACE(::testing::Message() << c);
        const auto got = trireme_test::run_on_ranks(c, in);
        EXPECT_LT(relative_error(got.o, truth.o), 1e-5);
        EXPECT_LT(relative_error(got.lse, truth.lse), 1e-5);
        EXPECT_LT(relative_error(got.dq, truth.dq), 1e-5);
        EXPECT_LT(relative_error(got.dk, truth.dk), 1e-5);
        EXPECT_LT(relative_error(got.dv, truth.dv), 1e-5);
      }
  }
}

// A rank's tokens of the heads that others compute, and back the others' tokens of its own heads: no more. Of
// three tokens some ranks have none.
TEST(HeadsAtScale, each_exchange_sends_the_heads_that_are_used_and_no_more) {
  constexpr int64_t kBatch = 2, kRowBytes = kBatch * kWidth * 4;
  for_each_case([](HeadCounts heads, int ranks) {
    const std::vector<Used> used = used_heads(heads, ranks);
    run_ranks_as_threads(ranks, [&](World& world) {
      const Mesh mesh = make_mesh(world, {.ulysses = ranks});
      Group& group = *mesh.ulysses;
      int64_t query_of_others = 0, packed_of_others = 0;
      for (int p = 0; p < ranks; ++p)
        if (p != group.rank()) {
          query_of_others += used[p].query;
          packed_of_others += used[p].packed();
        }
      const int64_t my_query = used[group.rank()].query, my_packed = used[group.rank()].packed();
      const auto sent = [&] {
        const int64_t bytes = group.traffic().at("all_to_all").sent_bytes;
        EXPECT_EQ(group.traffic().size(), 1);
        EXPECT_EQ(group.traffic().at("all_to_all").calls, 1);
        group.reset_traffic();
        return bytes;
      };
      group.reset_traffic();
      for (const int64_t tokens : {int64_t{3}, kTokens}) {
        const UlyssesPartition partition{{tokens, ranks}, share_heads(heads.query, heads.key_value, ranks)};
        const int64_t mine = tokens / ranks + (group.rank() < tokens % ranks ? 1 : 0);
        const at::Tensor qkv = seq_to_heads_qkv(
            group, partition, at::ones({kBatch, mine, heads.query + 2 * heads.key_value, kWidth}));
        EXPECT_EQ(sent(), mine * packed_of_others * kRowBytes);
        const HeadsQkv by_heads = split_qkv(qkv, my_query, (my_packed - my_query) / 2);
        const at::Tensor o = heads_to_seq(group, partition, at::ones(by_heads.q.sizes()));
        EXPECT_EQ(sent(), (tokens - mine) * my_query * kRowBytes);
        seq_to_heads(group, partition, o);
        EXPECT_EQ(sent(), mine * query_of_others * kRowBytes);
        seq_to_heads_pair(group, partition, o, o);
        EXPECT_EQ(sent(), 2 * mine * query_of_others * kRowBytes);
        heads_to_seq_qkv(
            group, partition,
            {at::ones(by_heads.q.sizes()), at::ones(by_heads.k.sizes()), at::ones(by_heads.v.sizes())});
        EXPECT_EQ(sent(), (tokens - mine) * my_packed * kRowBytes);
      }
    });
  });
}

// Chunks cut the buffers, not the bytes: a key/value head that several chunks use travels once.
TEST(HeadsAtScale, head_chunks_send_what_one_exchange_sends) {
  for_each_case([](HeadCounts heads, int ranks) {
    if (ranks % 3 != 0 && ranks != 8) return;
    ShardedCase c{.ulysses = ranks,
                  .tokens = kTokens,
                  .query_heads = heads.query,
                  .kv_heads = heads.key_value,
                  .width = kWidth};
    const auto in = trireme_test::draw_inputs(c, 2);
    const auto bytes = [&](int head_chunks) {
      c.head_chunks = head_chunks;
      std::vector<int64_t> sent(ranks);
      auto whole = trireme_test::nothing_yet(c);
      run_ranks_as_threads(ranks, [&](World& world) {
        const Mesh mesh = make_mesh(world, {.ulysses = ranks});
        trireme_test::run_rank(mesh, c, in, whole);
        for (const auto& [name, traffic] : mesh.ulysses->traffic()) sent[world.rank()] += traffic.sent_bytes;
      });
      return sent;
    };
    const std::vector<int64_t> at_once = bytes(1);
    for (const int head_chunks : {2, 3}) EXPECT_EQ(bytes(head_chunks), at_once) << head_chunks << " chunks";
  });
}

// A token that sees itself alone gives its value what upstream gives its queries: in bf16, 256 + 1 + 1 would
// stay 256, in fp16 2048 + 1 + 1 would stay 2048.
TEST(HeadsAtScale, gradients_of_a_key_value_head_that_several_chunks_use_are_summed_in_fp32) {
  for (const auto& [dtype, large] : {std::pair{at::kBFloat16, 256.0}, {at::kHalf, 2048.0}})
    for (const int ring : {1, 2})
      for (const int head_chunks : {1, 2, 3}) {
        const ShardedCase c{.ring = ring,
                            .head_chunks = head_chunks,
                            .tokens = 4,
                            .query_heads = 3,
                            .kv_heads = 1,
                            .width = kWidth,
                            .mask = {.window = 1},
                            .dtype = dtype};
        const auto in = trireme_test::draw_inputs(c, 3);
        in.d_o.fill_(1);
        in.d_o.select(2, 0).fill_(large);
        const auto got = trireme_test::run_on_ranks(c, in);
        EXPECT_TRUE(got.dv.eq(large + 2).all().item<bool>()) << c << ": " << got.dv.min().item<double>();
      }
}

}  // namespace
}  // namespace trireme
