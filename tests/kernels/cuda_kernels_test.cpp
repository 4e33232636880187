// What each kernel of CUDA takes and refuses (cuda_kernels.h), and how it says so.
#include "trireme/kernels/cuda_kernels.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/sample_layout.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;

std::string cudnn_refusal(const VisibleKeys& keys, int64_t width = 64) {
  AttentionSizes sizes{1, keys.queries(), keys.key_rows, 2, 1, width};
  return make_cudnn_kernel()->refusal(mask_calls(keys, 1).front(), sizes);
}

TEST(CudaKernels, cudnn_takes_whole_samples_and_the_parts_of_a_zig_zag_ring) {
  for (const Causality causality : {Causality::causal, Causality::full}) {
    EXPECT_EQ(cudnn_refusal(*visible_keys({.causality = causality}, {}, 1024, {{0, 1024}}, {{0, 1024}})), "");
    const SampleLayout layout{1024, 1, 4};
    for (int ring_index = 0; ring_index < 4; ++ring_index)
      for (int other = 0; other < 4; ++other)
        EXPECT_EQ(cudnn_refusal(*visible_keys({.causality = causality}, {}, 1024,
                                              layout.ring_spans(ring_index), layout.ring_spans(other))),
                  "");
  }
}

TEST(CudaKernels, what_cudnn_does_not_know_is_refused_by_name) {
  const auto refusal = [](const LayerMask& mask, const std::vector<Documents>& documents,
                          const TokenSpan& queries, const TokenSpan& keys) {
    return cudnn_refusal(*visible_keys(mask, documents, 640, {queries}, {keys}));
  };
  const TokenSpan all{0, 640};
  EXPECT_THAT(refusal({.window = 8}, {}, all, all), HasSubstr("a window"));
  EXPECT_THAT(refusal({}, {Documents({0, 90, 640})}, all, all), HasSubstr("packed documents"));
  EXPECT_THAT(refusal({}, {}, {320, 640}, all),
              HasSubstr("320 query rows over 640 key rows, expected as many"));
  EXPECT_THAT(refusal({}, {}, {0, 63}, {0, 63}),
              HasSubstr("63 query rows over 63 key rows, expected 64 or more"));
  EXPECT_EQ(refusal({}, {}, {0, 64}, {0, 64}), "");
  const LayerMask full{.causality = Causality::full};
  EXPECT_THAT(refusal(full, {}, all, {0, 192}), HasSubstr("over 192 key rows, 64 more than a multiple"));
  EXPECT_EQ(refusal(full, {}, all, {0, 256}), "");
  EXPECT_THAT(
      refusal({.causality = Causality::full}, {Documents({0, 200, 400, 640})}, {100, 300}, {300, 640}),
      HasSubstr("100 of 200 query rows see 100 of 340 key rows"));
  EXPECT_THAT(cudnn_refusal(*causal_keys(64), 192), HasSubstr("head width 192"));
  EXPECT_THAT(cudnn_refusal(*causal_keys(64), 24),
              HasSubstr("head width 24, expected a multiple of 8 from 32"));
  for (const std::string& text : {refusal({.window = 8}, {}, all, all), cudnn_refusal(*causal_keys(64), 12)})
    EXPECT_THAT(text, HasSubstr("--attention flash or --attention auto"));
}

// Lengths that come again, from the one that pays for a call.
TEST(CudaKernels, cudnn_takes_long_documents_of_16_lengths_an_octave) {
  const auto refusal = [](int64_t tokens) {
    const AttentionSizes sizes{1, 100000, 100000, 32, 8, 128};
    return make_cudnn_kernel()->refusal(mask_calls(*causal_keys(tokens), 1).front(), sizes);
  };
  for (const int64_t tokens : {4096, 4352, 15 * 1024, 34816}) EXPECT_EQ(refusal(tokens), "");
  for (const int64_t tokens : {3840, 4095, 4097, 32768 + 1024})
    EXPECT_THAT(refusal(tokens), HasSubstr("expected all of either"));
}

// libtorch then gives cuDNN's attention another log-sum-exp.
TEST(CudaKernels, an_environment_in_which_cudnns_layout_differs_is_refused) {
  constexpr const char* kVariable = "TORCH_CUDNN_SDPA_AVOID_RECOMPILE";
  ::setenv(kVariable, "1", 1);
  EXPECT_THAT(testing::message_of<ConfigError>([] { make_cudnn_kernel(); }), HasSubstr(kVariable));
  EXPECT_NO_THROW(make_cuda_flash_kernel());
  ::setenv(kVariable, "0", 1);
  EXPECT_NO_THROW(make_cudnn_kernel());
  ::unsetenv(kVariable);
}

TEST(CudaKernels, flash_takes_every_call_of_widths_that_it_has) {
  const auto refusal = [](int64_t width) {
    return make_cuda_flash_kernel()->refusal(mask_calls(*causal_keys(64, 3), 1).front(),
                                             {1, 64, 64, 2, 1, width});
  };
  EXPECT_EQ(refusal(256), "");
  EXPECT_THAT(refusal(264), HasSubstr("--attention reference"));
  EXPECT_THAT(refusal(12), HasSubstr("head width 12"));
}

TEST(CudaKernels, what_the_efficient_kernel_lacks_in_fp32_tiles_have) {
  const auto refusal = [](const CallKernel& kernel, const VisibleKeys& keys, int64_t heads) {
    const AttentionSizes sizes{1, keys.queries(), keys.key_rows, heads, heads, 128};
    return kernel.refusal(mask_calls(keys, 1, 1).front(), sizes);
  };
  const auto efficient = make_cuda_efficient_kernel(), tiles = make_cuda_tiles_kernel();
  constexpr int64_t kMostRows = (int64_t{1} << 31) / 128 - 1;  // of one head, whose elements 32 bits count
  EXPECT_EQ(refusal(*efficient, *causal_keys(kMostRows), 32), "");
  EXPECT_THAT(refusal(*efficient, *causal_keys(kMostRows + 1), 32), HasSubstr("--attention tiles"));
  EXPECT_THAT(refusal(*efficient, *causal_keys(64, 8), 1), HasSubstr("a window"));
  EXPECT_EQ(refusal(*tiles, *causal_keys(100'000, 8), 1), "");
}

}  // namespace
}  // namespace trireme
