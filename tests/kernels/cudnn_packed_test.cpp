// Laws of cuDNN's graphs of segments (cudnn_packed_kernel.cpp) on the CPU: the graphs are played
// (played_graphs.h), FlashAttention, which confirms them, too (flash_operators.h).
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/kernels/cuda_kernels.h"

#include "tests/kernels/band_laws.h"
#include "tests/kernels/operator_calls.h"
#include "tests/kernels/played_graphs.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using trireme_test::calls_of;
using trireme_test::draw_mask;
using trireme_test::DrawnMask;
using trireme_test::GraphFault;
using trireme_test::LawCase;
using trireme_test::PlayedGraphs;

// Memory that nobody wrote reads as NaN.
class CudnnPacked : public ::testing::Test {
 protected:
  void SetUp() override { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  static std::unique_ptr<CallsAttention> packed(GraphFault fault = GraphFault::none,
                                                int64_t* built = nullptr) {
    return attention_by_calls(make_cudnn_packed_kernel(std::make_unique<PlayedGraphs>(fault, built)));
  }
  // As --attention cudnn_packed has them.
  static std::unique_ptr<CallsAttention> beside_dense_calls() {
    return attention_by_calls(make_cudnn_kernel({.least_pair_values = kNeverAlone}),
                              make_cudnn_packed_kernel(std::make_unique<PlayedGraphs>()));
  }
  static LawCase heads(uint64_t seed) {
    return trireme_test::draw_in_16_bits(seed, seed % 2 == 0 ? 32 : 48,
                                         seed % 4 < 2 ? at::kBFloat16 : at::kHalf);
  }
};

TEST_F(CudnnPacked, equals_the_definition_on_random_masks) {
  const auto alone = packed(), beside = beside_dense_calls();
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const DrawnMask mask = draw_mask(seed, seed % 16 == 3 ? 160 : 40);
    SCOPED_TRACE(mask.text);
    trireme_test::expect_definition(seed % 2 == 0 ? *alone : *beside, mask, heads(seed), seed);
    if (HasFailure()) return;
  }
}

TEST_F(CudnnPacked, parts_computed_from_the_merged_output_sum_up_to_the_whole) {
  const auto attention = packed();
  for (uint64_t seed = 500; seed < 540; ++seed) {
    const DrawnMask mask = draw_mask(seed, 40);
    SCOPED_TRACE(mask.text);
    trireme_test::expect_parts_to_sum_up(*attention, mask, heads(seed), seed);
    if (HasFailure()) return;
  }
}

DrawnMask documents(const std::vector<int64_t>& borders) {
  const int64_t tokens = borders.back();
  return {visible_keys({}, {Documents(borders)}, tokens, {{0, tokens}}, {{0, tokens}}), 1, ""};
}

// Forward and backward of other documents, of as many tokens.
TEST_F(CudnnPacked, documents_of_like_sizes_share_graphs) {
  int64_t built = 0;
  const auto attention = packed(GraphFault::none, &built);
  LawCase c = heads(0);
  trireme_test::expect_definition(*attention, documents({0, 3, 140, 141, 232}), c, 1);
  const int64_t first = built;
  EXPECT_EQ(first, 4);  // each pass, and its confirmation's
  trireme_test::expect_definition(*attention, documents({0, 70, 73, 230, 232}), c, 2);
  EXPECT_EQ(built, first);
  trireme_test::expect_definition(*attention, documents({0, 1, 2, 3, 4, 232}), c, 3);
  EXPECT_EQ(built, first + 2);
}

// One call for all documents, however long; whole samples by libtorch's dense ones.
TEST_F(CudnnPacked, long_documents_stay_in_the_call_and_whole_samples_are_dense) {
  const auto attention = beside_dense_calls();
  const int64_t before = calls_of("_cudnn_attention_forward");
  trireme_test::expect_definition(*attention, documents({0, 3, 200}), heads(0), 1);
  EXPECT_EQ(calls_of("_cudnn_attention_forward"), before);
  trireme_test::expect_definition(*attention, documents({0, 200}), heads(0), 1);
  EXPECT_EQ(calls_of("_cudnn_attention_forward"), before + 1);
  EXPECT_EQ(attention->for_documents({32, 4, 128}), "");
  EXPECT_EQ(attention->name(), "cudnn; cudnn_packed (cuDNN's graphs of segments) for other masks");
}

// Of every kind of fault, by the first call of the kind of mask that shows it.
TEST_F(CudnnPacked, flash_attention_confirms_the_first_call_of_each_kind) {
  const DrawnMask causal = documents({0, 90, 200});
  const DrawnMask window{visible_keys({.window = 60}, {}, 200, {{0, 200}}, {{0, 200}}), 1, ""};
  const auto message = [](GraphFault fault, const DrawnMask& mask) {
    const auto attention = packed(fault);
    return testing::message_of<ConfigError>(
        [&] { trireme_test::expect_definition(*attention, mask, heads(0), 1); });
  };
  EXPECT_EQ(message(GraphFault::none, causal), "no error");
  EXPECT_EQ(message(GraphFault::none, window), "no error");
  for (const auto& [fault, mask] :
       {std::pair(GraphFault::diagonal_at_the_first_key, causal),
        std::pair(GraphFault::window_one_shorter, window), std::pair(GraphFault::lse_in_bits, causal)})
    EXPECT_THAT(message(fault, mask), HasSubstr("differs from flash (CUDA, FlashAttention-2): "));
  EXPECT_THAT(message(GraphFault::lse_in_bits, causal), HasSubstr("the log-sum-exp by"));
  EXPECT_THAT(message(GraphFault::dk_of_first_head, causal), HasSubstr(": dk by 0.1"));
  EXPECT_THAT(message(GraphFault::o_of_wider_rows, causal), HasSubstr(": o by 0.2"));
  EXPECT_THAT(message(GraphFault::lse_in_bits, causal), HasSubstr("use --attention auto"));
}

TEST_F(CudnnPacked, a_call_that_failed_its_confirmation_fails_again) {
  const auto attention = packed(GraphFault::lse_in_bits);
  for (int time = 0; time < 2; ++time)
    EXPECT_THROW(trireme_test::expect_definition(*attention, documents({0, 9}), heads(0), 1), ConfigError);
}

TEST_F(CudnnPacked, widths_that_graphs_lack_are_refused) {
  const auto attention = packed();
  for (const int64_t width : {16, 40, 144}) {
    LawCase c = heads(0);
    c.width = width;
    const auto run = [&] { trireme_test::expect_definition(*attention, documents({0, 9}), c, 1); };
    EXPECT_THAT(testing::message_of<ConfigError>(run), HasSubstr(cat("head width ", width)));
  }
}

TEST_F(CudnnPacked, a_machine_without_cuda_refuses_it_by_name) {
  if (at::hasCUDA()) GTEST_SKIP() << "here it is";
  EXPECT_THAT(testing::message_of<ConfigError>([] {
                make_local_attention(AttentionKernel::cudnn_packed, at::Device(at::kCUDA, 0), at::kBFloat16);
              }),
              HasSubstr("./dev build cuda"));
  EXPECT_THAT(testing::message_of<ConfigError>(
                  [] { make_local_attention(AttentionKernel::cudnn_packed, at::kCPU, at::kBFloat16); }),
              HasSubstr("attention kernel 'cudnn_packed': got device cpu"));
}

}  // namespace
}  // namespace trireme
