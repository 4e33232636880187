// Laws of local attention under every mask, and of calls that hold only a part of the queries and keys, as
// ring attention makes them; for every kernel that this machine runs.
#include <functional>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "trireme/base/sample_layout.h"
#include "trireme/kernels/local_attention.h"

#include "tests/kernels/local_case.h"
#include "tests/kernels/oracle_mask.h"

namespace trireme {
namespace {

using trireme_test::cpu_kernels;
using trireme_test::draw_inputs;
using trireme_test::largest_difference;
using trireme_test::OracleResult;
using trireme_test::relative_error;
using trireme_test::tokens_of;
using trireme_test::truth_of;
using Case = trireme_test::LocalCase;
using Inputs = trireme_test::LocalInputs;

std::vector<int64_t> every_token_alone(int64_t tokens) {
  std::vector<int64_t> cuts(tokens + 1);
  std::iota(cuts.begin(), cuts.end(), 0);
  return cuts;
}

// One document of `tokens`, then a tail of single tokens: a padded row.
std::vector<int64_t> padded(int64_t tokens, int64_t total) {
  std::vector<int64_t> cuts{0};
  for (int64_t cut = tokens; cut <= total; ++cut) cuts.push_back(cut);
  return cuts;
}

std::vector<Case> masked_cases() {
  const auto full = Causality::full, causal = Causality::causal;
  return {
      {1, 1, {0}, 1, 8, 0, 1, full},
      {1, 130, {0, 0, 1}, 2, 16, 0, 1, full},
      {2, 300, {0, 1}, 2, 40, 0, 1, full},
      {1, 300, {0, 0}, 1, 64, 33, 1, full},
      {1, 300, {0}, 1, 16, 1, 1, full},
      {1, 70, {0, 0, 1, 1}, 2, 24, 500, 1, full},
      {1, 61, {0, 0, 1}, 2, 16, 0, 1, causal, {{0, 1, 2, 30, 61}}},
      {2, 200, {0, 1, 1}, 2, 64, 0, 1, causal, {{0, 64, 128, 200}, {0, 200}}},
      {2, 300, {0}, 1, 8, 0, 1, full, {{0, 1, 150, 151, 299, 300}, {0, 63, 65, 300}}},
      {1, 300, {0, 0}, 1, 80, 20, 1, causal, {{0, 10, 100, 130, 300}}},
      {1, 300, {0, 1}, 2, 16, 45, 1, full, {{0, 30, 190, 300}}},
      {1, 130, {0, 0}, 1, 16, 0, 1, causal, {every_token_alone(130)}},
      {3, 150, {0, 0}, 1, 24, 0, 1, full, {padded(100, 150), padded(1, 150), padded(149, 150)}},
      {1, 300, {0, 0, 1}, 2, 16, 0, 1, causal, {}, {64, 1, 0, 0}},
      {1, 512, {0}, 1, 64, 0, 1, causal, {}, {64, 2, 1, 0}},
      {1, 500, {0, 0}, 1, 8, 0, 1, full, {}, {64, 1, 1, 3}},
      {1, 385, {0, 1}, 2, 24, 0, 1, full, {}, {128, 1, 0, 2}},
      {2, 300, {0, 0}, 1, 16, 100, 1, causal, {{0, 70, 300}, {0, 200, 201, 300}}, {64, 2, 0, 3}},
      {1, 200, {0}, 1, 40, 90, 1, full, {{0, 100, 200}}, {64, 1, 1, 0}},
      {1, 256, {0}, 1, 16, 0, 1, causal, {}, {64, 5, 0, 0}},  // every block is kept
  };
}

TEST(LocalAttentionMasks, fp32_equals_the_definition) {
  uint64_t seed = 1000;
  for (const Case& c : masked_cases()) {
    const Inputs in = draw_inputs(c, at::kFloat, seed++);
    const OracleResult truth = truth_of(in);
    for (const auto& kernel : cpu_kernels(at::kFloat)) {
      SCOPED_TRACE(::testing::Message() << kernel->name() << ": " << c);
      expect_below(errors_of(*kernel, in, truth), 1e-5, 3e-6);
    }
  }
}

TEST(LocalAttentionMasks, error_in_16_bits_is_at_most_twice_the_plain_one) {
  uint64_t seed = 2000;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
    for (const Case& c : masked_cases()) {
      const Inputs in = draw_inputs(c, dtype, seed++);
      const OracleResult truth = truth_of(in), plain = plain_of(in);
      for (const auto& kernel : cpu_kernels(dtype)) {
        SCOPED_TRACE(::testing::Message() << kernel->name() << " " << dtype << ": " << c);
        expect_low_precision_law(*kernel, in, truth, plain);
      }
    }
}

// A query that sees keys, and whose scores are all minus infinity, has no answer: NaN must not look like a
// query that sees nothing, or training would go on over it.
TEST(LocalAttentionMasks, scores_of_minus_infinity_give_nan_and_not_zero) {
  for (const auto& kernel : cpu_kernels(at::kFloat)) {
    const at::Tensor q = at::full({1, 3, 1, 16}, -std::numeric_limits<float>::infinity()),
                     k = at::ones({1, 3, 1, 16});
    const AttentionSpec spec{{1.0}, causal_keys(3), {0}};
    EXPECT_TRUE(kernel->forward(q, k, k, spec).o.isnan().all().item<bool>()) << kernel->name();
  }
}

// What ring index `queries` of a sample sees of ring index `keys`.
struct Part {
  at::Tensor query_tokens, key_tokens;
  AttentionSpec spec;
};
Part part_of(const Case& c, const Inputs& in, const SampleLayout& layout, int queries, int keys) {
  const TokenSpans query_spans = layout.ring_spans(queries), key_spans = layout.ring_spans(keys);
  Part part{tokens_of(query_spans), tokens_of(key_spans), in.spec};
  part.spec.keys =
      visible_keys(c.mask(), trireme_test::documents_from(c.cu_seqlens), c.tokens, query_spans, key_spans);
  part.spec.results = ResultDtype::fp32;
  return part;
}

std::vector<Case> cases_for_parts() {
  const auto full = Causality::full, causal = Causality::causal;
  return {
      {1, 150, {0, 0, 1}, 2, 16, 0, 1, causal},
      {2, 301, {0}, 1, 64, 0, 1, causal},
      {1, 200, {0, 1}, 2, 24, 31, 1, causal},
      {1, 200, {0, 0}, 1, 8, 0, 1, full},
      {1, 150, {0, 0}, 1, 40, 9, 1, full},
      {2, 150, {0, 1}, 2, 16, 0, 1, causal, {{0, 1, 50, 150}, {0, 149, 150}}},
      {2, 150, {0}, 1, 16, 60, 1, full, {padded(100, 150), {0, 20, 150}}},
      {1, 5, {0}, 1, 8, 0, 1, causal},  // parts of one token, and empty ones
  };
}

// The rows of a tensor whose infinite entries are those of another; the others zero, for comparison.
at::Tensor zero_where_nothing_is_seen(const at::Tensor& lse, const at::Tensor& truth) {
  return lse.to(at::kDouble).masked_fill(truth.eq(-std::numeric_limits<double>::infinity()), 0);
}

TEST(LocalAttentionMasks, a_part_of_queries_and_keys_equals_the_definition_of_that_part) {
  uint64_t seed = 3000;
  for (const Case& c : cases_for_parts()) {
    const Inputs in = draw_inputs(c, at::kFloat, seed++);
    for (const int ring : {2, 3, 4})
      for (int queries = 0; queries < ring; ++queries)
        for (int keys = 0; keys < ring; ++keys) {
          const Part part = part_of(c, in, {c.tokens, 1, ring}, queries, keys);
          trireme_test::SeenKeys seen;
          seen.reserve(in.seen.size());
          for (const at::Tensor& whole : in.seen)
            seen.push_back(whole.index_select(0, part.query_tokens).index_select(1, part.key_tokens));
          const at::Tensor q = in.q.index_select(1, part.query_tokens);
          const at::Tensor d_o = in.d_o.index_select(1, part.query_tokens);
          const at::Tensor k = in.k.index_select(1, part.key_tokens),
                           v = in.v.index_select(1, part.key_tokens);
          const OracleResult truth = trireme_test::attention_oracle(q, k, v, d_o, part.spec.scores.scale,
                                                                    seen, part.spec.kv_of_query);
          for (const auto& kernel : cpu_kernels(at::kFloat)) {
            SCOPED_TRACE(::testing::Message() << kernel->name() << ": " << c << ", ring_index " << queries
                                              << " of " << ring << " sees ring_index " << keys);
            const AttentionOutput out = kernel->forward(q, k, v, part.spec);
            const AttentionGradients g = kernel->backward(d_o, q, k, v, out, part.spec);
            EXPECT_LT(relative_error(out.o, truth.o), 1e-5);
            EXPECT_TRUE(at::equal(out.lse.isinf(), truth.lse.isinf()));
            EXPECT_LT(largest_difference(zero_where_nothing_is_seen(out.lse, truth.lse),
                                         zero_where_nothing_is_seen(truth.lse, truth.lse)),
                      1e-5);
            EXPECT_LT(relative_error(g.dq, truth.dq), 1e-5);
            EXPECT_LT(relative_error(g.dk, truth.dk), 1e-5);
            EXPECT_LT(relative_error(g.dv, truth.dv), 1e-5);
          }
        }
  }
}

// o and lse of parts of the keys, as sums in fp64.
struct Merged {
  at::Tensor o, lse;
};
Merged merge(const std::vector<AttentionOutput>& parts) {
  std::vector<at::Tensor> all_lse;
  all_lse.reserve(parts.size());
  for (const AttentionOutput& part : parts) all_lse.push_back(part.lse.to(at::kDouble));
  Merged merged{at::zeros(parts[0].o.sizes(), at::kDouble), at::stack(all_lse, 0).logsumexp(0)};
  for (size_t i = 0; i < parts.size(); ++i)
    merged.o += parts[i].o.to(at::kDouble) * (all_lse[i] - merged.lse).exp().transpose(1, 2).unsqueeze(3);
  return merged;
}

// Backward is given the o and lse of all keys: what it gives for each part then adds up.
void expect_parts_to_make_the_whole(const Case& c, const Inputs& in, int ring, LocalAttention& kernel,
                                    const std::function<void(const OracleResult&)>& judge) {
  const auto dtype = in.q.scalar_type();
  const SampleLayout layout{c.tokens, 1, ring};
  OracleResult whole{at::zeros(in.q.sizes(), at::kDouble),
                     at::zeros({in.q.size(0), in.q.size(2), c.tokens}, at::kDouble),
                     at::zeros(in.q.sizes(), at::kDouble), at::zeros(in.k.sizes(), at::kDouble),
                     at::zeros(in.k.sizes(), at::kDouble)};
  for (int queries = 0; queries < ring; ++queries) {
    const at::Tensor mine = tokens_of(layout.ring_spans(queries));
    const at::Tensor q = in.q.index_select(1, mine), d_o = in.d_o.index_select(1, mine);
    std::vector<AttentionOutput> outputs;
    for (int keys = 0; keys < ring; ++keys) {
      const Part part = part_of(c, in, layout, queries, keys);
      outputs.push_back(kernel.forward(q, in.k.index_select(1, part.key_tokens),
                                       in.v.index_select(1, part.key_tokens), part.spec));
      EXPECT_EQ(outputs.back().o.scalar_type(), at::kFloat);
    }
    const Merged merged = merge(outputs);
    whole.o.index_copy_(1, mine, merged.o);
    whole.lse.index_copy_(2, mine, merged.lse);
    const AttentionOutput saved{merged.o.to(dtype), merged.lse.to(at::kFloat)};
    for (int keys = 0; keys < ring; ++keys) {
      const Part part = part_of(c, in, layout, queries, keys);
      const AttentionGradients g = kernel.backward(d_o, q, in.k.index_select(1, part.key_tokens),
                                                   in.v.index_select(1, part.key_tokens), saved, part.spec);
      for (const at::Tensor& x : {g.dq, g.dk, g.dv}) EXPECT_EQ(x.scalar_type(), at::kFloat);
      whole.dq.index_add_(1, mine, g.dq.to(at::kDouble));
      whole.dk.index_add_(1, part.key_tokens, g.dk.to(at::kDouble));
      whole.dv.index_add_(1, part.key_tokens, g.dv.to(at::kDouble));
    }
  }
  judge(whole);
}

TEST(LocalAttentionMasks, parts_in_fp32_make_the_whole) {
  uint64_t seed = 4000;
  for (const Case& c : cases_for_parts()) {
    const Inputs in = draw_inputs(c, at::kFloat, seed++);
    const OracleResult truth = truth_of(in);
    for (const int ring : {2, 3})
      for (const auto& kernel : cpu_kernels(at::kFloat)) {
        SCOPED_TRACE(::testing::Message() << kernel->name() << ": " << c << ", " << ring << " parts");
        expect_parts_to_make_the_whole(c, in, ring, *kernel, [&](const OracleResult& whole) {
          EXPECT_LT(relative_error(whole.o, truth.o), 1e-5);
          EXPECT_LT(largest_difference(whole.lse, truth.lse), 1e-5);
          EXPECT_LT(relative_error(whole.dq, truth.dq), 1e-5);
          EXPECT_LT(relative_error(whole.dk, truth.dk), 1e-5);
          EXPECT_LT(relative_error(whole.dv, truth.dv), 1e-5);
        });
      }
  }
}

TEST(LocalAttentionMasks, parts_in_16_bits_make_the_whole_with_at_most_twice_the_plain_error) {
  uint64_t seed = 5000;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
    for (const Case& c : cases_for_parts()) {
      if (c.tokens < 100) continue;
      const Inputs in = draw_inputs(c, dtype, seed++);
      const OracleResult truth = truth_of(in), plain = plain_of(in);
      const double floor = dtype == at::kHalf ? 5e-4 : 4e-3;
      const auto bound = [&](const at::Tensor& of_plain, const at::Tensor& of_truth) {
        return std::max(2 * relative_error(of_plain, of_truth), floor);
      };
      for (const auto& kernel : cpu_kernels(dtype)) {
        SCOPED_TRACE(::testing::Message() << kernel->name() << " " << dtype << ": " << c);
        expect_parts_to_make_the_whole(c, in, 3, *kernel, [&](const OracleResult& whole) {
          EXPECT_LE(relative_error(whole.o, truth.o), bound(plain.o, truth.o));
          EXPECT_LE(relative_error(whole.dq, truth.dq), bound(plain.dq, truth.dq));
          EXPECT_LE(relative_error(whole.dk, truth.dk), bound(plain.dk, truth.dk));
          EXPECT_LE(relative_error(whole.dv, truth.dv), bound(plain.dv, truth.dv));
        });
      }
    }
}

// Queries before every key, and between what two windows reach: nothing comes of them, not even NaN.
TEST(LocalAttentionMasks, a_query_that_sees_no_key_gives_zero_and_minus_infinity_and_no_gradient) {
  const int64_t tokens = 400;
  const TokenSpans queries{{0, 300}}, keys{{100, 130}, {250, 400}};
  for (const auto& [dtype, window] :
       {std::pair{at::kFloat, 0}, {at::kFloat, 20}, {at::kBFloat16, 20}, {at::kHalf, 20}}) {
    const Inputs in = draw_inputs({1, tokens, {0, 0, 1}, 2, 16}, dtype, 6000);
    AttentionSpec spec = in.spec;
    spec.keys = visible_keys({.window = window}, {}, tokens, queries, keys);
    const at::Tensor q = in.q.index_select(1, tokens_of(queries)),
                     d_o = in.d_o.index_select(1, tokens_of(queries));
    const at::Tensor k = in.k.index_select(1, tokens_of(keys)), v = in.v.index_select(1, tokens_of(keys));
    std::vector<int64_t> blind;
    for (int64_t position = 0; position < 300; ++position)
      if (position < 100 || (window > 0 && position > 130 - 1 + window - 1 && position < 250))
        blind.push_back(position);
    ASSERT_EQ(blind.size(), window == 0 ? 100 : 201);
    const at::Tensor rows = at::tensor(blind, at::kLong);
    for (const auto& kernel : cpu_kernels(dtype)) {
      SCOPED_TRACE(::testing::Message() << kernel->name() << " window " << window);
      const AttentionOutput out = kernel->forward(q, k, v, spec);
      EXPECT_TRUE(out.o.isfinite().all().item<bool>());
      EXPECT_EQ(out.o.index_select(1, rows).abs().max().item<double>(), 0);
      EXPECT_TRUE(
          out.lse.index_select(2, rows).eq(-std::numeric_limits<double>::infinity()).all().item<bool>());
      EXPECT_EQ(out.lse.isinf().sum().item<int64_t>(), 3 * rows.numel());
      const AttentionGradients g = kernel->backward(d_o, q, k, v, out, spec);
      for (const at::Tensor& x : {g.dq, g.dk, g.dv}) EXPECT_TRUE(x.isfinite().all().item<bool>());
      EXPECT_EQ(g.dq.index_select(1, rows).abs().max().item<double>(), 0);
      // What upstream says of them does not matter.
      const at::Tensor other = d_o.index_fill(1, rows, 100);
      const AttentionGradients same = kernel->backward(other, q, k, v, out, spec);
      EXPECT_TRUE(at::equal(same.dk, g.dk) && at::equal(same.dv, g.dv) && at::equal(same.dq, g.dq));
    }
  }
}

TEST(LocalAttentionMasks, no_keys_at_all_and_no_queries_at_all_are_calls_too) {
  for (const auto& kernel : cpu_kernels(at::kFloat)) {
    SCOPED_TRACE(kernel->name());
    AttentionSpec spec;
    spec.kv_of_query = {0, 0};
    const at::Tensor some_q = at::randn({2, 5, 2, 8}), no_q = at::empty({2, 0, 2, 8});
    const at::Tensor some_k = at::randn({2, 5, 1, 8}), no_k = at::empty({2, 0, 1, 8});
    spec.keys = visible_keys({}, {}, 5, {{0, 5}}, {});
    const AttentionOutput blind = kernel->forward(some_q, no_k, no_k, spec);
    EXPECT_EQ(blind.o.abs().max().item<double>(), 0);
    EXPECT_TRUE(blind.lse.isneginf().all().item<bool>());
    const AttentionGradients g = kernel->backward(some_q, some_q, no_k, no_k, blind, spec);
    EXPECT_EQ(g.dq.abs().max().item<double>(), 0);
    EXPECT_EQ(g.dk.sizes(), no_k.sizes());
    spec.keys = visible_keys({}, {}, 5, {}, {{0, 5}});
    const AttentionOutput none = kernel->forward(no_q, some_k, some_k, spec);
    EXPECT_EQ(none.o.sizes(), no_q.sizes());
    EXPECT_EQ(none.lse.sizes(), (std::vector<int64_t>{2, 2, 0}));
    EXPECT_EQ(kernel->backward(no_q, no_q, some_k, some_k, none, spec).dk.abs().max().item<double>(), 0);
  }
}

// Blocks that are not kept are not read by the flash kernels: what lies there cannot matter.
TEST(LocalAttentionMasks, blocks_that_are_not_kept_cost_nothing) {
  for (const int64_t block : {64, 128})
    for (const Causality causality : {Causality::causal, Causality::full})
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        Case c{1, 4 * block + 10, {0, 0, 1}, 2, 16, 0, 1, causality};
        c.sparse = {.block_tokens = block};
        const Inputs in = draw_inputs(c, dtype, 7000);
        in.k.slice(1, block, 2 * block).fill_(NAN);
        in.v.slice(1, block, 2 * block).fill_(NAN);
        for (const auto& kernel : cpu_kernels(dtype)) {
          if (kernel->name().find("reference") != std::string::npos) continue;
          SCOPED_TRACE(kernel->name());
          const AttentionOutput out = kernel->forward(in.q, in.k, in.v, in.spec);
          const AttentionGradients g = kernel->backward(in.d_o, in.q, in.k, in.v, out, in.spec);
          const auto finite_outside = [&](const at::Tensor& x) {
            return x.slice(1, 0, block).isfinite().all().item<bool>() &&
                   x.slice(1, 2 * block).isfinite().all().item<bool>();
          };
          EXPECT_TRUE(finite_outside(out.o) && finite_outside(out.lse.transpose(1, 2)));
          EXPECT_TRUE(finite_outside(g.dq) && finite_outside(g.dk) && finite_outside(g.dv));
          EXPECT_TRUE(out.o.slice(1, block, 2 * block).isnan().any().item<bool>());
        }
      }
}

}  // namespace
}  // namespace trireme
