// Laws of Ulysses attention, with ranks as threads.
#include "trireme/attention/ulysses.h"

#include <mutex>
#include <numeric>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"

#include "tests/attention/sharded_case.h"

namespace trireme::ulysses_test {
namespace {

using trireme_test::relative_error;
using trireme_test::ShardedCase;

constexpr int64_t kWidth = 8;

struct HeadCounts {
  int64_t query, key_value;
};
const std::vector<HeadCounts> kHeadCounts{{6, 3}, {3, 3}, {6, 2}, {8, 4}, {7, 1}, {4, 4}};
const std::vector<int64_t> kTokens{1, 3, 61, 128};

at::Tensor random_tensor(const std::vector<int64_t>& sizes, uint64_t seed,
                         at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble).to(dtype);
}

// Runs body(group) on ranks as threads; a group of one has no backend.
void on_ranks(int ranks, const std::function<void(Group&)>& body) {
  run_ranks_as_threads(ranks, [&](World& world) {
    std::vector<int> all(ranks);
    std::iota(all.begin(), all.end(), 0);
    const auto group = world.make_group("ulysses", {all});
    body(*group);
  });
}

at::Tensor shard(const at::Tensor& x, const SequenceLayout& layout, int rank) {
  return x.slice(1, layout.begin(rank), layout.begin(rank) + layout.size(rank)).contiguous();
}

void expect_ranks_equal_one(int ranks, HeadCounts heads, int64_t tokens, int64_t batch, int64_t window,
                            at::ScalarType dtype, double tolerance) {
  const ShardedCase c{.ulysses = ranks,
                      .batch = batch,
                      .tokens = tokens,
                      .query_heads = heads.query,
                      .kv_heads = heads.key_value,
                      .width = kWidth,
                      .mask = {.window = window},
                      .dtype = dtype};
  SCOPED_TRACE(::testing::Message() << c);
  const auto in = trireme_test::draw_inputs(c, 1);
  const auto truth = trireme_test::truth_of(c, in);
  const auto got = trireme_test::run_on_ranks(c, in);
  EXPECT_LT(relative_error(got.o, truth.o), tolerance);
  EXPECT_LT(relative_error(at::cat({got.dq, got.dk, got.dv}, 2), at::cat({truth.dq, truth.dk, truth.dv}, 2)),
            tolerance);
}

TEST(Ulysses, outputs_and_gradients_equal_those_of_one_rank) {
  for (const int ranks : {1, 2, 3, 4})
    for (const HeadCounts heads : kHeadCounts)
      if (ranks <= heads.query)
        for (const int64_t tokens : kTokens)
          for (const int64_t batch : {1, 2})
            if (batch == 1 || tokens == 3 || tokens == 61)
              expect_ranks_equal_one(ranks, heads, tokens, batch, 0, at::kFloat, 1e-5);
}

TEST(Ulysses, windows_and_16_bit_types_travel_too) {
  for (const int ranks : {2, 3}) {
    expect_ranks_equal_one(ranks, {6, 3}, 61, 2, 17, at::kFloat, 1e-5);
    expect_ranks_equal_one(ranks, {7, 1}, 61, 1, 0, at::kBFloat16, 2e-2);
    expect_ranks_equal_one(ranks, {7, 1}, 61, 1, 0, at::kHalf, 2.5e-3);
  }
}

TEST(Ulysses, each_rank_gets_its_heads_of_the_whole_sequence) {
  const int64_t tokens = 7, batch = 2;
  const at::Tensor qkv = random_tensor({batch, tokens, 12, kWidth}, 3);
  on_ranks(2, [&](Group& group) {
    const UlyssesPartition partition{{tokens, 2}, share_heads(6, 3, 2)};
    const HeadsQkv heads =
        split_qkv(seq_to_heads_qkv(group, partition, shard(qkv, partition.layout, group.rank())), 3, 2);
    const int64_t r = group.rank();
    EXPECT_TRUE(at::equal(heads.q, qkv.narrow(2, 3 * r, 3)));
    EXPECT_TRUE(at::equal(heads.k, qkv.narrow(2, 6 + r, 2)));
    EXPECT_TRUE(at::equal(heads.v, qkv.narrow(2, 9 + r, 2)));
    EXPECT_TRUE(heads.q.is_alias_of(heads.k) && heads.q.is_alias_of(heads.v));
  });
}

TEST(Ulysses, one_rank_copies_nothing) {
  Group group("ulysses", nullptr, {0}, 0, std::chrono::milliseconds(0));
  const UlyssesPartition partition{{5, 1}, share_heads(6, 3, 1)};
  const at::Tensor qkv = random_tensor({2, 5, 12, kWidth}, 4);
  EXPECT_EQ(seq_to_heads_qkv(group, partition, qkv).data_ptr(), qkv.data_ptr());
  const at::Tensor o = random_tensor({2, 5, 6, kWidth}, 5), d_o = o.clone();
  EXPECT_EQ(heads_to_seq(group, partition, o).data_ptr(), o.data_ptr());
  EXPECT_EQ(seq_to_heads(group, partition, d_o).data_ptr(), d_o.data_ptr());
  const auto [first, second] = seq_to_heads_pair(group, partition, d_o, o);
  EXPECT_TRUE(first.data_ptr() == d_o.data_ptr() && second.data_ptr() == o.data_ptr());
}

double inner_product(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) * b.to(at::kDouble)).sum().item<double>();
}

// <A x, y> = <x, A' y>, summed over ranks; exact up to the rounding of sums in fp32.
TEST(Ulysses, the_two_directions_are_adjoint) {
  for (const int ranks : {1, 2, 3, 4})
    for (const HeadCounts heads : kHeadCounts) {
      if (ranks > heads.query) continue;
      for (const int64_t tokens : {3, 61})
        for (const int64_t batch : {1, 2}) {
          std::mutex mutex;
          double qkv_there = 0, qkv_back = 0, o_there = 0, o_back = 0;
          on_ranks(ranks, [&](Group& group) {
            const UlyssesPartition partition{{tokens, ranks},
                                             share_heads(heads.query, heads.key_value, ranks)};
            const int64_t s = partition.layout.size(group.rank());
            const uint64_t seed = 100 + group.rank();
            const at::Tensor x = random_tensor({batch, s, heads.query + 2 * heads.key_value, kWidth}, seed);
            const HeadsQkv ax =
                split_qkv(seq_to_heads_qkv(group, partition, x), partition.heads.query[group.rank()].size(),
                          partition.heads.key_value[group.rank()].size());
            const AttentionGradients y{random_tensor(ax.q.sizes().vec(), seed + 10),
                                       random_tensor(ax.k.sizes().vec(), seed + 20),
                                       random_tensor(ax.v.sizes().vec(), seed + 30)};
            const at::Tensor aty = heads_to_seq_qkv(group, partition, y);
            const at::Tensor z = random_tensor({batch, s, heads.query, kWidth}, seed + 40);
            const at::Tensor az = seq_to_heads(group, partition, z),
                             w = random_tensor(az.sizes().vec(), seed + 50);
            const at::Tensor atw = heads_to_seq(group, partition, w);
            const std::lock_guard<std::mutex> lock(mutex);
            qkv_there += inner_product(ax.q, y.dq) + inner_product(ax.k, y.dk) + inner_product(ax.v, y.dv);
            qkv_back += inner_product(x, aty);
            o_there += inner_product(az, w);
            o_back += inner_product(z, atw);
          });
          EXPECT_NEAR(qkv_there, qkv_back, 1e-4);
          EXPECT_NEAR(o_there, o_back, 1e-9);
        }
    }
}

TEST(Ulysses, q_k_and_v_apart_travel_as_they_do_packed) {
  for (const int ranks : {1, 2, 3})
    for (const HeadCounts heads : kHeadCounts)
      on_ranks(ranks, [&](Group& group) {
        const UlyssesPartition partition{{10, ranks}, share_heads(heads.query, heads.key_value, ranks)};
        const int64_t s = partition.layout.size(group.rank());
        const at::Tensor qkv = random_tensor({2, s, heads.query + 2 * heads.key_value, kWidth}, group.rank());
        const HeadsQkv views = split_qkv(qkv, heads.query, heads.key_value);
        const HeadsQkv given{views.q.clone(), views.k.clone(), views.v.clone()};
        const HeadsQkv got = seq_to_heads_parts(group, partition, given);
        EXPECT_TRUE(at::equal(at::cat({got.q, got.k, got.v}, 2), seq_to_heads_qkv(group, partition, qkv)));
        const AttentionGradients y{got.q.clone(), got.k.clone(), got.v.clone()};
        const AttentionGradients dx = heads_to_seq_parts(group, partition, y);
        EXPECT_TRUE(at::equal(at::cat({dx.dq, dx.dk, dx.dv}, 2), heads_to_seq_qkv(group, partition, y)));
        EXPECT_FALSE(dx.dq.is_alias_of(dx.dk) || dx.dq.is_alias_of(dx.dv) || dx.dk.is_alias_of(dx.dv));
        if (ranks > 1) return;
        EXPECT_TRUE(got.q.is_same(given.q) && got.k.is_same(given.k) && got.v.is_same(given.v));
        EXPECT_TRUE(dx.dq.is_same(y.dq) && dx.dk.is_same(y.dk) && dx.dv.is_same(y.dv));
      });
}

TEST(Ulysses, do_and_o_travel_packed_as_they_would_alone) {
  on_ranks(3, [&](Group& group) {
    const UlyssesPartition partition{{10, 3}, share_heads(7, 1, 3)};
    const int64_t s = partition.layout.size(group.rank());
    const at::Tensor d_o = random_tensor({2, s, 7, kWidth}, group.rank());
    const at::Tensor o = random_tensor({2, s, 7, kWidth}, 10 + group.rank());
    const auto [first, second] = seq_to_heads_pair(group, partition, d_o, o);
    EXPECT_TRUE(at::equal(first, seq_to_heads(group, partition, d_o)));
    EXPECT_TRUE(at::equal(second, seq_to_heads(group, partition, o)));
    EXPECT_EQ(group.traffic().at("all_to_all").calls, 3);
  });
}

// A shared key/value head's gradients are summed in fp32: in bf16, 256 + 1 + 1 would stay 256, in fp16 2048 +
// 1 + 1 would stay 2048.
TEST(Ulysses, gradients_of_a_shared_head_are_summed_in_fp32) {
  on_ranks(3, [&](Group& group) {
    const UlyssesPartition partition{{3, 3}, share_heads(3, 1, 3)};
    for (const auto& [dtype, large] : {std::pair{at::kBFloat16, 256.0}, {at::kHalf, 2048.0}}) {
      const at::Tensor none = at::zeros({1, 3, 1, kWidth}, dtype);
      const at::Tensor mine = at::full({1, 3, 1, kWidth}, group.rank() == 0 ? large : 1.0, dtype);
      const at::Tensor dqkv = heads_to_seq_qkv(group, partition, {none, mine, mine});
      EXPECT_EQ(dqkv.narrow(2, 3, 2).to(at::kDouble).min().item<double>(), large + 2);
      EXPECT_EQ(dqkv.narrow(2, 3, 2).to(at::kDouble).max().item<double>(), large + 2);
    }
  });
}

TEST(Ulysses, a_partition_that_does_not_fit_the_group_is_a_bug_and_says_so) {
  Group group("ulysses", nullptr, {0}, 0, std::chrono::milliseconds(0));
  const UlyssesPartition partition{{5, 1}, share_heads(6, 3, 1)};
  EXPECT_THROW(seq_to_heads_qkv(group, partition, at::ones({1, 5, 11, kWidth})), InternalError);
  EXPECT_THROW(seq_to_heads(group, partition, at::ones({1, 4, 6, kWidth})), InternalError);
  EXPECT_THROW(heads_to_seq(group, {{5, 2}, share_heads(6, 3, 2)}, at::ones({1, 5, 3, kWidth})),
               InternalError);
}

}  // namespace
}  // namespace trireme::ulysses_test
