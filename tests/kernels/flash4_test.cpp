// Laws of FlashAttention-4's calls (flash4_kernel.cpp) on the CPU, where its kernels are played
// (played_flash4.h); on a Hopper GPU cuda_attention_test runs them.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/kernels/cuda_kernels.h"
#include "trireme/kernels/flash4_sizes.h"

#include "tests/kernels/band_laws.h"
#include "tests/kernels/operator_calls.h"
#include "tests/kernels/played_flash4.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using trireme_test::DrawnMask;
using trireme_test::Flash4Calls;
using trireme_test::Flash4Fault;
using trireme_test::LawCase;
using trireme_test::PlayedFlash4;
using trireme_test::whole;

// Memory that nobody wrote reads as NaN.
class Flash4 : public ::testing::Test {
 protected:
  void SetUp() override { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  std::unique_ptr<CallKernel> kernel(int64_t backward_call_bytes = kBackwardCall_bytes,
                                     Flash4Fault fault = Flash4Fault::none,
                                     int64_t least_pair_values = kLeastPairValues) {
    return make_flash4_kernel(std::make_unique<PlayedFlash4>(&calls, fault), backward_call_bytes,
                              least_pair_values);
  }
  std::unique_ptr<CallsAttention> alone(int64_t backward_call_bytes = kBackwardCall_bytes,
                                        Flash4Fault fault = Flash4Fault::none) {
    return attention_by_calls(kernel(backward_call_bytes, fault));
  }
  // As 'auto' is on Hopper in bf16.
  std::unique_ptr<CallsAttention> automatic(const CudnnCalls& cudnn = {},
                                            int64_t least_pair_values = kLeastPairValues) {
    return attention_by_calls(kernel(kBackwardCall_bytes, Flash4Fault::none, least_pair_values),
                              make_cudnn_kernel(cudnn), make_cuda_flash_kernel());
  }
  static LawCase heads(uint64_t seed) {
    return trireme_test::draw_in_16_bits(seed, kFlash4Widths[seed % 2].width, at::kBFloat16);
  }
  static int64_t calls_of_others() {
    return trireme_test::calls_of("_flash_attention_forward") +
           trireme_test::calls_of("_cudnn_attention_forward");
  }

  Flash4Calls calls;
};

TEST_F(Flash4, equals_the_definition_whole_and_in_parts) {
  const auto attention = alone();
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const int64_t odd = 1 + static_cast<int64_t>(seed * seed);
    for (const Causality causality : {Causality::causal, Causality::full})
      trireme_test::expect_definition(*attention, whole(causality, odd), heads(seed), seed);
    trireme_test::expect_parts_to_sum_up(*attention, whole(Causality::full, 60), heads(seed), 61 + 20 + seed);
    if (HasFailure()) return;
  }
  EXPECT_GT(calls.backward, 0);
}

TEST_F(Flash4, has_the_dense_calls_of_auto_and_leaves_the_others) {
  const auto attention = automatic();
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const DrawnMask mask = trireme_test::draw_mask(seed, 40);
    SCOPED_TRACE(mask.text);
    LawCase c = heads(seed);
    c.width = 64;
    trireme_test::expect_definition(*attention, mask, c, seed);
    if (HasFailure()) return;
  }
  EXPECT_GT(calls.forward, 0);
  const int64_t before = calls_of_others();
  EXPECT_GT(before, 0);
  trireme_test::expect_definition(*attention, whole(Causality::causal, 150), heads(1), 1);
  EXPECT_EQ(calls_of_others(), before);
}

// A zig-zag ring's: the last rows of a document, all of its keys.
TEST_F(Flash4, takes_causal_attention_of_fewer_rows_than_keys) {
  const DrawnMask tail{visible_keys({}, {}, 90, {{50, 90}}, {{0, 90}}), 1, ""};
  trireme_test::expect_definition(*alone(), tail, heads(1), 3);
  EXPECT_EQ(calls.forward, 1);
}

TEST_F(Flash4, a_long_backward_is_calls_of_a_group_of_heads) {
  LawCase c = heads(0);
  c.kv_of_query = {0, 0, 1, 1, 2, 2};
  c.kv_heads = 3;
  trireme_test::expect_definition(*alone(/*backward_call_bytes=*/1), whole(Causality::causal, 70), c, 5);
  EXPECT_EQ(calls.backward, 3 * calls.forward);
}

// No length of a document leaves a rest, nor has a short document a call of its own.
TEST_F(Flash4, long_documents_of_any_length_are_whole_calls) {
  const auto attention = automatic({}, /*least_pair_values=*/1);  // from 64 tokens on
  const auto forward_once = [&](const std::vector<Documents>& documents) {
    calls = {};
    const at::Tensor q = at::randn({1, 232, 2, 64}).to(at::kBFloat16), k = q.narrow(2, 0, 1);
    attention->forward(
        q, k, k,
        {{0.1}, visible_keys({}, documents, 232, {{0, 232}}, {{0, 232}}), {0, 0}, ResultDtype::of_input});
    return calls.forward;
  };
  const int64_t before = calls_of_others();
  EXPECT_EQ(forward_once({Documents({0, 67, 150, 232})}), 3);
  EXPECT_EQ(calls_of_others(), before);
  EXPECT_EQ(forward_once({Documents({0, 67, 69, 150, 160, 232})}), 3);
  EXPECT_EQ(calls_of_others(), before + 1);
  const std::vector<Documents> samples = {Documents({0, 3, 140, 141, 232}), Documents({0, 232}),
                                          Documents({0, 131, 150, 165, 232})};
  const DrawnMask mask{visible_keys({}, samples, 232, {{0, 232}}, {{0, 232}}), 3, ""};
  for (uint64_t seed = 0; seed < 4; ++seed)
    trireme_test::expect_definition(*attention, mask, heads(seed), seed);
}

TEST_F(Flash4, says_which_documents_are_its_own_and_keeps_whole_samples_of_any_length) {
  EXPECT_EQ(automatic()->for_documents({32, 4, 128}),
            "packed documents of 4096 tokens or more by flash4 (CUDA, FlashAttention-4), shorter ones by "
            "flash (CUDA, FlashAttention-2)");
  EXPECT_EQ(
      automatic()->for_documents({32, 4, 96}),
      "packed documents of 4864 tokens or more by cudnn, shorter ones by flash (CUDA, FlashAttention-2)");
  EXPECT_EQ(alone()->for_documents({32, 4, 128}), "");
  LawCase c = heads(0);
  const int64_t before = calls_of_others();
  trireme_test::expect_definition(*automatic({.lengths = SampleLengths::any, .least_pair_values = 1}),
                                  whole(Causality::causal, 137), c, 5);
  EXPECT_EQ(calls_of_others(), before);
}

// Nine query heads a key/value head are cuDNN's, which cuts samples of any length.
TEST_F(Flash4, larger_groups_stay_with_the_kernels_that_they_had) {
  EXPECT_EQ(
      automatic()->for_documents({32, 9, 128}),
      "packed documents of 4096 tokens or more by cudnn, shorter ones by flash (CUDA, FlashAttention-2)");
  LawCase c = heads(0);
  c.kv_of_query.assign(9, 0);
  c.kv_heads = 1;
  const int64_t before = trireme_test::calls_of("_cudnn_attention_forward");
  trireme_test::expect_definition(*automatic({.lengths = SampleLengths::any, .least_pair_values = 1}),
                                  whole(Causality::causal, 137), c, 5);
  EXPECT_EQ(calls.forward, 0);
  EXPECT_GT(trireme_test::calls_of("_cudnn_attention_forward"), before);
}

// What a kernel that is wrong gives is far from the definition.
TEST_F(Flash4, a_wrong_diagonal_or_log_sum_exp_is_seen) {
  const at::Tensor q = at::randn({1, 40, 2, 64}).to(at::kBFloat16),
                   k = at::randn({1, 90, 1, 64}).to(at::kBFloat16);
  const AttentionSpec spec{
      {0.1}, visible_keys({}, {}, 90, {{50, 90}}, {{0, 90}}), {0, 0}, ResultDtype::of_input};
  const AttentionOutput right = alone()->forward(q, k, k, spec);
  const auto differs = [&](Flash4Fault fault) {
    const AttentionOutput wrong = alone(kBackwardCall_bytes, fault)->forward(q, k, k, spec);
    return (wrong.o - right.o).abs().max().item<double>() > 0.1 ||
           (wrong.lse - right.lse).abs().max().item<double>() > 0.1;
  };
  EXPECT_FALSE(differs(Flash4Fault::none));
  EXPECT_TRUE(differs(Flash4Fault::diagonal_at_the_first_key));
  EXPECT_TRUE(differs(Flash4Fault::lse_in_bits));
}

TEST_F(Flash4, what_it_does_not_take_is_refused_by_name) {
  const auto refusal = [&](const VisibleKeys& keys, AttentionSizes sizes) {
    return kernel()->refusal(mask_calls(keys, 1).front(), sizes);
  };
  const AttentionSizes sizes{1, 40, 40, 32, 8, 128, 4};
  EXPECT_EQ(refusal(*causal_keys(40), sizes), "");
  AttentionSizes other = sizes;
  other.width = 96;
  EXPECT_THAT(refusal(*causal_keys(40), other), HasSubstr("got head width 96, expected one of 64, 128, 256"));
  other = sizes;
  other.largest_group = 9;
  EXPECT_THAT(refusal(*causal_keys(40), other),
              HasSubstr("got 9 query heads of one key/value head, expected 8 at most"));
  EXPECT_THAT(refusal(*visible_keys({.window = 8}, {}, 40, {{0, 40}}, {{0, 40}}), sizes),
              HasSubstr("window"));
  EXPECT_THAT(refusal(*visible_keys({}, {Documents({0, 9, 40})}, 40, {{0, 40}}, {{0, 40}}), sizes),
              HasSubstr("packed documents"));
}

// 2^31 elements are 2^24 rows of width 128, in tiles of 64 queries and of 128 keys.
TEST_F(Flash4, a_sum_of_more_elements_than_32_bits_count_is_refused) {
  constexpr int64_t kRows = int64_t{1} << 24;
  const auto refusal = [&](int64_t rows, int64_t keys, int64_t group) {
    MaskCall call;
    call.q_end = rows;
    call.k_end = keys;
    call.sample_end = 1;
    call.band = {kUnbounded, 0};
    return kernel()->refusal(call, {1, rows, keys, group, 1, 128, group});
  };
  EXPECT_EQ(refusal(kRows - 64, kRows - 128, 4), "");
  EXPECT_THAT(refusal(kRows - 63, kRows - 63, 1),
              HasSubstr("got 16777153 query rows over 16777153 key rows, expected fewer than 16777216"));
  EXPECT_THAT(refusal(64, kRows - 127, 4), HasSubstr("32 bits"));
  EXPECT_EQ(refusal(64, kRows, 1), "") << "keys of heads that are not grouped have no sums";
}

TEST_F(Flash4, without_a_hopper_it_is_refused_and_auto_does_not_ask_for_it) {
  if (flash4_lacks().empty()) GTEST_SKIP() << "a Hopper GPU is here";
  EXPECT_THAT(testing::message_of<ConfigError>([] { make_flash4_runner(); }), HasSubstr("flash4"));
  EXPECT_THROW(make_local_attention(AttentionKernel::flash4, at::kCPU, at::kBFloat16), ConfigError);
  EXPECT_THAT(testing::message_of<ConfigError>(
                  [] { make_local_attention(AttentionKernel::flash4, at::kCUDA, at::kHalf); }),
              HasSubstr("expected bf16"));
}

}  // namespace
}  // namespace trireme
