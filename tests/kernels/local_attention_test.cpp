// Laws of local attention of whole samples, for every kernel that this machine runs.
#include "trireme/kernels/local_attention.h"

#include <random>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/kernels/cpu_flash_attention.h"

#include "tests/kernels/local_case.h"

namespace trireme {
namespace {

using trireme_test::cpu_kernels;
using trireme_test::draw_inputs;
using trireme_test::errors_of;
using trireme_test::expect_below;
using trireme_test::OracleResult;
using trireme_test::relative_error;
using trireme_test::truth_of;
using Case = trireme_test::LocalCase;
using Inputs = trireme_test::LocalInputs;

std::vector<Case> hand_picked_cases() {
  return {
      {1, 1, {0}, 1, 8, 0},
      {2, 1, {0, 0}, 1, 16, 1},
      {1, 61, {0, 0, 1}, 2, 64, 0},
      {2, 61, {0, 1, 1}, 2, 16, 7},
      {1, 128, {0, 0, 1, 1}, 2, 64, 0},
      {1, 128, {0, 1, 2}, 3, 80, 64},
      {2, 300, {0, 0, 1}, 2, 8, 0},
      {1, 300, {0, 1, 1}, 2, 64, 100},
      {1, 300, {0}, 1, 128, 0},
      {1, 300, {0, 0, 0, 0, 0}, 1, 16, 1},
      {1, 300, {0, 0}, 1, 16, 1000},
      {1, 300, {0, 2}, 3, 16, 0},  // a key/value head that no query uses
      {1, 385, {0, 0, 0}, 1, 24, 129},
      {1, 640, {0}, 1, 8, 300},
      {1, 65, {0, 0, 1, 2, 2, 2, 2}, 3, 40, 33},
      {.batch = 1, .tokens = 200, .kv_of_query = {0, 0, 1}, .kv_heads = 2, .width = 24, .cap = 2},
      {.batch = 2,
       .tokens = 90,
       .kv_of_query = {0, 0},
       .kv_heads = 1,
       .width = 16,
       .window = 30,
       .spread = 3,
       .cap = 5},
  };
}

std::vector<Case> random_cases(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % bound); };
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Case c{1 + below(2), 1 + below(330), {}, 1 + below(3), 8 * (1 + below(12)), 0};
    int head = 0;
    for (int64_t query = 0, heads = 1 + below(4); query < heads; ++query) {
      head = static_cast<int>(std::min<int64_t>(c.kv_heads - 1, head + below(2)));
      c.kv_of_query.push_back(head);
    }
    if (below(2) == 0) c.window = 1 + below(c.tokens + 20);
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> all_cases() {
  auto cases = hand_picked_cases();
  for (const Case& c : random_cases(10, 11)) cases.push_back(c);
  return cases;
}

TEST(LocalAttention, fp32_equals_the_definition) {
  uint64_t seed = 1;
  for (const Case& c : all_cases()) {
    const Inputs in = draw_inputs(c, at::kFloat, seed++);
    const OracleResult truth = truth_of(in);
    for (const auto& kernel : cpu_kernels(at::kFloat)) {
      SCOPED_TRACE(::testing::Message() << kernel->name() << ": " << c);
      expect_below(errors_of(*kernel, in, truth), 1e-5, 3e-6);
    }
  }
}

TEST(LocalAttention, reference_in_fp64_equals_the_definition) {
  uint64_t seed = 100;
  const auto kernel = make_local_attention(AttentionKernel::automatic, at::kCPU, at::kDouble);
  EXPECT_NE(kernel->name().find("reference"), std::string::npos);
  for (const Case& c : hand_picked_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const Inputs in = draw_inputs(c, at::kDouble, seed++);
    expect_below(errors_of(*kernel, in, truth_of(in)), 1e-12, 1e-12);
  }
}

void expect_low_precision_law(at::ScalarType dtype) {
  uint64_t seed = 200;
  const auto kernels = cpu_kernels(dtype);
  for (const Case& c : all_cases()) {
    if (c.tokens > 130 && c.window == 0 && c.width > 16)
      continue;  // plain products in low precision are slow
    const Inputs in = draw_inputs(c, dtype, seed++);
    const OracleResult truth = truth_of(in), plain = trireme_test::plain_of(in);
    for (const auto& kernel : kernels) {
      SCOPED_TRACE(::testing::Message() << kernel->name() << ": " << c);
      trireme_test::expect_low_precision_law(*kernel, in, truth, plain);
    }
  }
}

TEST(LocalAttention, bf16_error_is_at_most_twice_the_plain_one) {
  expect_low_precision_law(at::kBFloat16);
}

TEST(LocalAttention, fp16_error_is_at_most_twice_the_plain_one) {
  expect_low_precision_law(at::kHalf);
}

// What fp16 cannot hold is infinite or NaN, so that a loss scaler sees it, and never a wrong number.
TEST(LocalAttention, gradients_that_overflow_fp16_are_not_finite) {
  Inputs in = draw_inputs({1, 200, {0, 0}, 1, 16, 0}, at::kHalf, 13);
  in.d_o.fill_(30000);
  const OracleResult truth = truth_of(in);
  const at::Tensor overflows = truth.dv.abs().gt(65520 * 1.01);
  ASSERT_GT(overflows.sum().item<int64_t>(), 10);
  for (const auto& kernel : cpu_kernels(at::kHalf)) {
    const AttentionOutput out = kernel->forward(in.q, in.k, in.v, in.spec);
    const at::Tensor dv = kernel->backward(in.d_o, in.q, in.k, in.v, out, in.spec).dv;
    EXPECT_TRUE(dv.masked_select(overflows).isinf().all().item<bool>()) << kernel->name();
    in.d_o[0][150][1][3] = std::numeric_limits<double>::infinity();
    const AttentionGradients g = kernel->backward(in.d_o, in.q, in.k, in.v, out, in.spec);
    EXPECT_FALSE(g.dq[0][150][1].isfinite().any().item<bool>()) << kernel->name();
    in.d_o[0][150][1][3] = 30000;
  }
}

TEST(LocalAttention, small_gradients_are_kept_as_fp16_denormals) {
  Inputs in = draw_inputs({1, 130, {0, 0, 1}, 2, 16, 0}, at::kHalf, 14);
  in.d_o.mul_(1e-6);  // below 2^-14, the smallest normal number
  const OracleResult truth = truth_of(in);
  for (const auto& kernel : cpu_kernels(at::kHalf)) {
    SCOPED_TRACE(kernel->name());
    const AttentionOutput out = kernel->forward(in.q, in.k, in.v, in.spec);
    const AttentionGradients g = kernel->backward(in.d_o, in.q, in.k, in.v, out, in.spec);
    // Half of the smallest denormal, and a little for what o, itself fp16, lacks.
    EXPECT_LT((g.dv.to(at::kDouble) - truth.dv).abs().max().item<double>(), 0x1p-25 * 1.01);
    EXPECT_LT((g.dq.to(at::kDouble) - truth.dq).abs().max().item<double>(), 0x1p-25 * 1.05);
    EXPECT_GT(g.dv.abs().max().item<double>(), 0x1p-22);
  }
}

TEST(LocalAttention, inputs_may_be_strided_views_and_are_not_changed) {
  const Case c{2, 150, {0, 0, 1}, 2, 16, 40};
  const Inputs in = draw_inputs(c, at::kFloat, 5);
  for (const auto& kernel : cpu_kernels(at::kFloat)) {
    SCOPED_TRACE(kernel->name());
    const AttentionOutput dense = kernel->forward(in.q, in.k, in.v, in.spec);
    const AttentionGradients expected = kernel->backward(in.d_o, in.q, in.k, in.v, dense, in.spec);
    const at::Tensor packed = at::cat({in.q, in.k, in.v}, 2);  // views of one buffer, as after the exchange
    const at::Tensor before = packed.clone();
    const at::Tensor q = packed.slice(2, 0, 3), k = packed.slice(2, 3, 5), v = packed.slice(2, 5, 7);
    const at::Tensor d_o = in.d_o.transpose(0, 1).contiguous().transpose(0, 1);
    const AttentionOutput out = kernel->forward(q, k, v, in.spec);
    const AttentionOutput saved{out.o.transpose(1, 2).contiguous().transpose(1, 2),
                                out.lse.transpose(1, 2).contiguous().transpose(1, 2)};
    const AttentionGradients g = kernel->backward(d_o, q, k, v, saved, in.spec);
    EXPECT_TRUE(at::equal(packed, before));
    EXPECT_TRUE(at::equal(out.o, dense.o) && at::equal(out.lse, dense.lse));
    EXPECT_LT(relative_error(g.dq, expected.dq), 1e-6);
    EXPECT_LT(relative_error(g.dk, expected.dk), 1e-6);
    EXPECT_LT(relative_error(g.dv, expected.dv), 1e-6);
    const at::Tensor gapped = at::stack({in.q, in.q}, 4).select(4, 0);  // last dimension not contiguous
    EXPECT_TRUE(at::equal(kernel->forward(gapped, in.k, in.v, in.spec).o, dense.o));
  }
}

TEST(LocalAttention, very_large_scores_neither_overflow_nor_lose_the_answer) {
  for (const int64_t window : {0, 50}) {
    const Case c{1, 200, {0, 0}, 1, 16, window, 60};  // scores to about 1e4: each softmax is nearly one-hot
    const Inputs in = draw_inputs(c, at::kFloat, 6);
    const OracleResult truth = truth_of(in);
    for (const auto& kernel : cpu_kernels(at::kFloat)) {
      SCOPED_TRACE(::testing::Message() << kernel->name() << ": " << c);
      const trireme_test::LocalErrors errors = errors_of(*kernel, in, truth);
      EXPECT_LT(errors.lse, 1e-6);
      EXPECT_LT(errors.o, 3e-3);
      EXPECT_LT(errors.dv, 3e-3);
    }
  }
}

TEST(LocalAttention, rows_whose_scores_rise_with_distance_keep_their_running_maximum) {
  // Keys grow more negative with position: the first key block holds the maximum, the last ones underflow.
  const int64_t tokens = 700;
  Inputs in = draw_inputs({1, tokens, {0}, 1, 8, 0}, at::kFloat, 7);
  in.q.fill_(1);
  in.k.copy_(at::linspace(30, -3000, tokens, at::kFloat).view({1, tokens, 1, 1}).expand({1, tokens, 1, 8}));
  const OracleResult falling = truth_of(in);
  Inputs rising = in;
  rising.k = in.k.flip(1).contiguous();
  const OracleResult rising_truth = truth_of(rising);
  for (const auto& kernel : cpu_kernels(at::kFloat)) {
    SCOPED_TRACE(kernel->name());
    for (const auto& [inputs, truth] : {std::pair(&in, &falling), std::pair(&rising, &rising_truth)}) {
      const trireme_test::LocalErrors errors =
          errors_of(*kernel, *inputs, *truth);  // dq and dk are differences of nearly nothing
      EXPECT_LT(errors.o, 1e-3);
      EXPECT_LT(errors.dv, 1e-3);
      EXPECT_LT(errors.lse, 1e-6);
    }
  }
}

TEST(LocalAttention, a_window_of_one_sees_only_itself) {
  const Inputs in = draw_inputs({1, 130, {0, 1}, 2, 8, 1}, at::kFloat, 8);
  for (const auto& kernel : cpu_kernels(at::kFloat)) {
    SCOPED_TRACE(kernel->name());
    const AttentionOutput out = kernel->forward(in.q, in.k, in.v, in.spec);
    EXPECT_TRUE(at::allclose(out.o, in.v, 1e-6, 1e-7));
    const AttentionGradients g = kernel->backward(in.d_o, in.q, in.k, in.v, out, in.spec);
    EXPECT_TRUE(at::allclose(g.dv, in.d_o, 1e-6, 1e-7));
    EXPECT_LT(g.dq.abs().max().item<double>(), 1e-5);
  }
}

TEST(LocalAttention, a_window_wider_than_the_sequence_is_no_window) {
  Inputs in = draw_inputs({1, 200, {0, 0}, 1, 16, 0}, at::kFloat, 9);
  for (const auto& kernel : cpu_kernels(at::kFloat)) {
    in.spec.keys = causal_keys(200);
    const AttentionOutput open = kernel->forward(in.q, in.k, in.v, in.spec);
    in.spec.keys = causal_keys(200, 4096);
    EXPECT_TRUE(at::equal(kernel->forward(in.q, in.k, in.v, in.spec).o, open.o)) << kernel->name();
  }
}

TEST(LocalAttention, nothing_in_gives_nothing_out) {
  for (const auto& kernel : cpu_kernels(at::kFloat)) {
    const auto run = [&](int64_t tokens, int64_t heads, int64_t kv_heads) {
      const at::Tensor q = at::randn({1, tokens, heads, 8}), k = at::randn({1, tokens, kv_heads, 8});
      AttentionSpec spec;
      spec.keys = causal_keys(tokens);
      spec.kv_of_query.assign(heads, 0);
      const AttentionOutput out = kernel->forward(q, k, k, spec);
      EXPECT_EQ(out.o.sizes(), q.sizes());
      EXPECT_EQ(out.lse.sizes(), (std::vector<int64_t>{1, heads, tokens}));
      const AttentionGradients g = kernel->backward(q, q, k, k, out, spec);
      EXPECT_EQ(g.dq.sizes(), q.sizes());
      EXPECT_EQ(g.dk.sizes(), k.sizes());
      EXPECT_EQ(g.dk.abs().sum().item<double>(), 0);
    };
    run(0, 2, 1);
    run(5, 0, 1);
    run(5, 0, 0);
  }
}

TEST(LocalAttention, a_nan_in_the_input_shows_in_the_output) {
  Inputs in = draw_inputs({1, 100, {0}, 1, 8, 0}, at::kFloat, 10);
  in.k[0][3][0][2] = NAN;
  for (const auto& kernel : cpu_kernels(at::kFloat)) {
    const AttentionOutput out = kernel->forward(in.q, in.k, in.v, in.spec);
    EXPECT_TRUE(out.o[0][99].isnan().any().item<bool>()) << kernel->name();
    EXPECT_TRUE(out.o[0][2].isfinite().all().item<bool>()) << kernel->name();
  }
}

// Work dealt to threads in any way gives the numbers of one thread; twice the same way, the same bits.
TEST(LocalAttention, threads_change_nothing_and_runs_repeat_bit_for_bit) {
  const int threads_before = at::get_num_threads();
  for (const auto& [batch, map, kv_heads] :
       {std::tuple{1, std::vector<int>{0}, 1}, {1, {0, 0, 1, 1, 2, 2}, 3}, {2, {0, 0, 1}, 2}}) {
    const Inputs in = draw_inputs({batch, 700, map, kv_heads, 16, 0}, at::kFloat, 12);
    CpuFlashAttention kernel(at::kFloat);
    at::set_num_threads(1);
    const AttentionOutput out = kernel.forward(in.q, in.k, in.v, in.spec);
    const AttentionGradients g = kernel.backward(in.d_o, in.q, in.k, in.v, out, in.spec);
    for (const int threads : {2, 3, 4}) {
      at::set_num_threads(threads);
      const AttentionOutput again = kernel.forward(in.q, in.k, in.v, in.spec);
      EXPECT_TRUE(at::equal(again.o, out.o) && at::equal(again.lse, out.lse));
      const AttentionGradients first = kernel.backward(in.d_o, in.q, in.k, in.v, out, in.spec);
      const AttentionGradients second = kernel.backward(in.d_o, in.q, in.k, in.v, out, in.spec);
      EXPECT_TRUE(at::equal(first.dq, second.dq) && at::equal(first.dk, second.dk) &&
                  at::equal(first.dv, second.dv));
      EXPECT_LT(relative_error(first.dq, g.dq), 1e-6);
      EXPECT_LT(relative_error(first.dk, g.dk), 1e-6);
      EXPECT_LT(relative_error(first.dv, g.dv), 1e-6);
    }
  }
  at::set_num_threads(threads_before);
}

TEST(LocalAttention, a_kernel_that_is_not_there_is_refused_by_name) {
  EXPECT_THROW(make_local_attention(AttentionKernel::cudnn, at::kCPU, at::kFloat), ConfigError);
  EXPECT_THROW(make_local_attention(AttentionKernel::flash, at::kCPU, at::kDouble), ConfigError);
  EXPECT_THROW(make_local_attention(AttentionKernel::automatic, at::kCPU, at::kLong), ConfigError);
  EXPECT_THROW(make_local_attention(AttentionKernel::flash, at::kCUDA, at::kFloat), ConfigError);
}

}  // namespace
}  // namespace trireme
