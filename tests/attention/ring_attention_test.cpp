// Laws of attention over ring ranks, by ring and by gathered keys: bytes, bits, and low precision. That its
// numbers are right is property_test's.
#include "trireme/attention/ring_attention.h"

#include <limits>

#include <gtest/gtest.h>

#include "trireme/attention/exchange_bytes.h"
#include "trireme/attention/sequence_attention.h"
#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"

#include "tests/attention/sharded_case.h"

namespace trireme::ring_attention_test {
namespace {

using trireme_test::relative_error;
using trireme_test::ShardedCase;

int64_t sent_bytes(const Group& group) {
  int64_t bytes = 0;
  for (const auto& [name, traffic] : group.traffic()) bytes += traffic.sent_bytes;
  return bytes;
}

struct Sent {
  int64_t forward = 0, backward = 0;
};

// What each rank of a ring sends, of k and v heads [B, n, K, D] each.
std::vector<Sent> sent_by_ranks(int ring, RingMethod method, int64_t batch, int64_t tokens, int64_t kv_heads,
                                int64_t width, at::ScalarType dtype) {
  std::vector<Sent> sent(ring);
  run_ranks_as_threads(ring, [&](World& world) {
    const Mesh mesh = make_mesh(world, {.ring = ring});
    const SampleLayout layout{tokens, 1, ring};
    const int rank = mesh.ring->rank();
    const auto local = make_local_attention(AttentionKernel::automatic, at::kCPU, dtype);
    const auto attention = make_sequence_attention(method, *mesh.ring, *local);
    const SequenceMask mask = make_sequence_mask({}, {}, layout, rank, method);
    const SequenceSpec spec{
        {}, trireme_test::ShardedCase{.query_heads = 2 * kv_heads, .kv_heads = kv_heads}.kv_of_query(), mask};
    const int64_t n = layout.ring_tokens(rank);
    const at::Tensor q = at::ones({batch, n, 2 * kv_heads, width}, dtype);
    const at::Tensor kv = at::ones({batch, n, kv_heads, width}, dtype);
    const AttentionOutput out = attention->forward(q, kv, kv, spec);
    sent[rank].forward = sent_bytes(*mesh.ring);
    mesh.ring->reset_traffic();
    attention->backward(q, q, kv, kv, out, spec);
    sent[rank].backward = sent_bytes(*mesh.ring);
  });
  return sent;
}

constexpr int64_t kBatch = 2, kKvHeads = 3, kWidth = 8;

// Even shares: k and v of all but one rank pass each rank, and in backward their gradients, in fp32, too.
TEST(RingAttention, bytes_are_those_of_the_keys_and_values_of_all_other_ranks) {
  for (const int ring : {2, 3, 4, 8})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const RingMethod method : {RingMethod::ring, RingMethod::gather}) {
        const int64_t tokens = 48, bytes = dtype == at::kFloat ? 4 : 2;
        const int64_t elements = 2 * kBatch * kKvHeads * kWidth * tokens * (ring - 1) / ring;
        for (const Sent& sent : sent_by_ranks(ring, method, kBatch, tokens, kKvHeads, kWidth, dtype)) {
          EXPECT_EQ(sent.forward, elements * bytes) << "R " << ring;
          EXPECT_EQ(sent.backward, elements * (bytes + 4)) << "R " << ring;
        }
      }
}

// With uneven ones, empty ones among them: each rank's block travels R - 1 hops, whoever hands it on.
TEST(RingAttention, all_ranks_together_send_each_block_to_every_other_rank) {
  for (const int ring : {2, 3, 5})
    for (const int64_t tokens : {1, 4, 61})
      for (const RingMethod method : {RingMethod::ring, RingMethod::gather}) {
        Sent total;
        for (const Sent& sent : sent_by_ranks(ring, method, 1, tokens, kKvHeads, kWidth, at::kBFloat16)) {
          total.forward += sent.forward;
          total.backward += sent.backward;
        }
        const int64_t elements = 2 * kKvHeads * kWidth * tokens * (ring - 1);
        EXPECT_EQ(total.forward, elements * 2) << "R " << ring << " S " << tokens;
        EXPECT_EQ(total.backward, elements * (2 + 4)) << "R " << ring << " S " << tokens;
      }
}

// The planner's formulas are what travels, to the byte, on both axes at once and in head chunks.
TEST(RingAttention, the_formulas_of_every_exchange_are_what_each_rank_sends) {
  for (const auto& [ulysses, ring] : {std::pair{1, 3}, {2, 1}, {2, 2}, {3, 2}, {2, 4}, {4, 2}, {7, 1}})
    for (const int64_t tokens : {5, 61})
      for (const RingMethod method : {RingMethod::ring, RingMethod::gather})
        for (const int head_chunks : {1, 2}) {
          const ShardedCase c{.ulysses = ulysses,
                              .ring = ring,
                              .method = method,
                              .head_chunks = head_chunks,
                              .batch = 2,
                              .tokens = tokens,
                              .query_heads = 14,
                              .kv_heads = 2,
                              .width = kWidth,
                              .dtype = at::kBFloat16};
          const auto in = trireme_test::draw_inputs(c, 1);
          auto whole = trireme_test::nothing_yet(c);
          const HeadShares heads = share_heads(c.query_heads, c.kv_heads, ulysses);
          const ExchangeExtents extents{.batch = 2, .head_dim = kWidth, .element_bytes = 2, .sum_bytes = 4};
          run_ranks_as_threads(c.ranks(), [&](World& world) {
            const Mesh mesh = make_mesh(world, {.ulysses = c.ulysses, .ring = c.ring});
            trireme_test::run_rank(mesh, c, in, whole);
            const int rank = mesh.sp->rank();
            EXPECT_EQ(sent_bytes(*mesh.ulysses),
                      ulysses_exchange_bytes(extents, c.layout(), heads, rank).layer().both())
                << c;
            // Each head chunk takes its key/value heads round the ring.
            if (head_chunks > 1) return;
            const ExchangeBytes between_ring_ranks =
                method == RingMethod::ring ? ring_exchange_bytes(extents, c.layout(), heads, rank)
                                           : gather_exchange_bytes(extents, c.layout(), heads, rank);
            EXPECT_EQ(sent_bytes(*mesh.ring), between_ring_ranks.both()) << c;
          });
        }
}

TEST(RingAttention, one_rank_exchanges_nothing_and_is_the_kernel_itself) {
  Group ring("ring", nullptr, {0}, 0, std::chrono::milliseconds(0));
  const auto local = make_local_attention(AttentionKernel::automatic, at::kCPU, at::kFloat);
  for (const RingMethod method : {RingMethod::ring, RingMethod::gather}) {
    const auto attention = make_sequence_attention(method, ring, *local);
    EXPECT_EQ(attention->name(), local->name());
    const SampleLayout layout{50, 1, 1};
    const SequenceMask mask = make_sequence_mask({}, {}, layout, 0, method);
    const SequenceSpec spec{{.scale = 0.3}, {0, 0}, mask};
    const at::Tensor q = at::randn({1, 50, 2, 8}), k = at::randn({1, 50, 1, 8}), v = at::randn({1, 50, 1, 8});
    const AttentionOutput out = attention->forward(q, k, v, spec);
    const AttentionOutput expected = local->forward(q, k, v, {{0.3}, causal_keys(50), {0, 0}});
    EXPECT_TRUE(at::equal(out.o, expected.o) && at::equal(out.lse, expected.lse));
    attention->backward(q, q, k, v, out, spec);
    EXPECT_TRUE(ring.traffic().empty());
  }
}

TEST(RingAttention, two_runs_give_the_same_bits) {
  for (const RingMethod method : {RingMethod::ring, RingMethod::gather})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const ShardedCase c{.ulysses = 2,
                          .ring = 4,
                          .method = method,
                          .head_chunks = 2,
                          .batch = 2,
                          .tokens = 203,
                          .query_heads = 6,
                          .kv_heads = 3,
                          .width = 16,
                          .cu_seqlens = {{0, 100, 203}, {0, 1, 203}},
                          .dtype = dtype};
      const auto in = trireme_test::draw_inputs(c, 2);
      const auto once = trireme_test::run_on_ranks(c, in), again = trireme_test::run_on_ranks(c, in);
      EXPECT_TRUE(at::equal(once.o, again.o) && at::equal(once.lse, again.lse)) << c;
      EXPECT_TRUE(at::equal(once.dq, again.dq) && at::equal(once.dk, again.dk) &&
                  at::equal(once.dv, again.dv))
          << c;
    }
}

// The error does not grow with the ring: partial results are merged and summed in fp32.
TEST(RingAttention, error_of_bf16_over_8_ranks_is_at_most_twice_that_of_plain_bf16) {
  for (const Causality causality : {Causality::causal, Causality::full}) {
    ShardedCase c{.batch = 1,
                  .tokens = 1024,
                  .query_heads = 2,
                  .kv_heads = 1,
                  .width = 64,
                  .mask = {.causality = causality},
                  .dtype = at::kBFloat16};
    const auto in = trireme_test::draw_inputs(c, 3);
    const auto truth = trireme_test::truth_of(c, in), plain = trireme_test::plain_of(c, in);
    const auto alone = trireme_test::run_on_ranks(c, in);
    c.ring = 8;
    for (const RingMethod method : {RingMethod::ring, RingMethod::gather}) {
      c.method = method;
      const auto ring = trireme_test::run_on_ranks(c, in);
      const auto judge = [&](const char* name, const at::Tensor& got, const at::Tensor& of_plain,
                             const at::Tensor& of_one, const at::Tensor& of_truth) {
        const double error = relative_error(got, of_truth);
        EXPECT_LE(error, 2 * relative_error(of_plain, of_truth)) << name << ": " << c;
        EXPECT_LE(error, 1.5 * relative_error(of_one, of_truth)) << name << ": " << c;
      };
      judge("o", ring.o, plain.o, alone.o, truth.o);
      judge("dq", ring.dq, plain.dq, alone.dq, truth.dq);
      judge("dk", ring.dk, plain.dk, alone.dk, truth.dk);
      judge("dv", ring.dv, plain.dv, alone.dv, truth.dv);
    }
  }
}

TEST(RingAttention, merging_what_saw_nothing_changes_nothing) {
  const double none = -std::numeric_limits<double>::infinity();
  const AttentionOutput some{at::randn({1, 3, 2, 8}), at::randn({1, 2, 3})};
  const AttentionOutput nothing{at::zeros({1, 3, 2, 8}), at::full({1, 2, 3}, none)};
  AttentionOutput sum{some.o.clone(), some.lse.clone()};
  merge_attention(sum, nothing);
  EXPECT_TRUE(at::equal(sum.o, some.o) && at::equal(sum.lse, some.lse));
  sum = {nothing.o.clone(), nothing.lse.clone()};
  merge_attention(sum, some);
  EXPECT_TRUE(at::equal(sum.o, some.o) && at::equal(sum.lse, some.lse));
  sum = {nothing.o.clone(), nothing.lse.clone()};
  merge_attention(sum, nothing);
  EXPECT_TRUE(at::equal(sum.o, nothing.o) && at::equal(sum.lse, nothing.lse));
}

TEST(RingAttention, a_mask_of_another_method_or_a_layout_of_another_ring_is_a_bug_and_says_so) {
  run_ranks_as_threads(2, [](World& world) {
    const Mesh mesh = make_mesh(world, {.ring = 2});
    const auto local = make_local_attention(AttentionKernel::automatic, at::kCPU, at::kFloat);
    const SampleLayout layout{8, 1, 2}, other{8, 1, 4};
    const at::Tensor q = at::ones({1, 4, 1, 8});
    for (const auto& [method, wrong] :
         {std::pair{RingMethod::ring, RingMethod::gather}, {RingMethod::gather, RingMethod::ring}}) {
      const auto attention = make_sequence_attention(method, *mesh.ring, *local);
      const SequenceMask mask = make_sequence_mask({}, {}, layout, mesh.ring->rank(), wrong);
      EXPECT_THROW(attention->forward(q, q, q, {{}, {0}, mask}), InternalError);
    }
    const auto ring = make_sequence_attention(RingMethod::ring, *mesh.ring, *local);
    const SequenceMask mask = make_sequence_mask({}, {}, other, mesh.ring->rank(), RingMethod::ring);
    EXPECT_THROW(ring->forward(q, q, q, {{}, {0}, mask}), InternalError);
  });
}

}  // namespace
}  // namespace trireme::ring_attention_test
