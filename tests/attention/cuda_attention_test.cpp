// The kernels on CUDA against the definition. Skipped where there is no GPU.
#include "trireme/attention/cuda_attention.h"

#include <gtest/gtest.h>

#include "tests/attention/band_laws.h"

namespace trireme {
namespace {

using trireme_test::draw_heads;
using trireme_test::draw_mask;
using trireme_test::DrawnMask;
using trireme_test::LawCase;

class CudaAttention : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }
  static std::unique_ptr<LocalAttention> kernel(AttentionKernel which) {
    return make_cuda_attention(which, GetParam());
  }
  static LawCase on_cuda(uint64_t seed) {
    LawCase c = draw_heads(seed);
    constexpr int64_t kWidths[] = {8, 64, 80, 128};
    c.width = kWidths[seed % 4];
    c.dtype = GetParam();
    c.device = at::Device(at::kCUDA, 0);
    c.results = seed % 3 == 0 ? ResultDtype::fp32 : ResultDtype::of_input;
    c.tolerance = GetParam() == at::kHalf ? 5e-3 : 3e-2;
    return c;
  }
};

TEST_P(CudaAttention, equals_the_definition_on_random_masks) {
  const auto flash = kernel(AttentionKernel::flash), automatic = kernel(AttentionKernel::automatic);
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const DrawnMask mask = draw_mask(seed, 400);
    SCOPED_TRACE(mask.text);
    trireme_test::expect_definition(seed % 2 == 0 ? *flash : *automatic, mask, on_cuda(seed), seed);
    if (HasFailure()) return;
  }
}

TEST_P(CudaAttention, parts_computed_from_the_merged_output_sum_up_to_the_whole) {
  const auto flash = kernel(AttentionKernel::flash);
  for (uint64_t seed = 500; seed < 560; ++seed) {
    const DrawnMask mask = draw_mask(seed, 400);
    SCOPED_TRACE(mask.text);
    trireme_test::expect_parts_to_sum_up(*flash, mask, on_cuda(seed), seed);
    if (HasFailure()) return;
  }
}

DrawnMask whole(Causality causality, int64_t tokens) {
  return {visible_keys({.causality = causality}, {}, tokens, {{0, tokens}}, {{0, tokens}}), 2, ""};
}

TEST_P(CudaAttention, cudnn_equals_the_definition_whole_and_in_parts) {
  const auto cudnn = kernel(AttentionKernel::cudnn);
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    const LawCase c = on_cuda(seed);
    trireme_test::expect_definition(*cudnn, whole(Causality::causal, 130 + static_cast<int64_t>(seed)), c,
                                    seed);
    trireme_test::expect_definition(*cudnn, whole(Causality::full, 256), c, seed);
    // Keys cut at 90 + seed of 200: both parts are full rectangles.
    trireme_test::expect_parts_to_sum_up(*cudnn, whole(Causality::full, 200), c, 201 + 90 + seed);
    if (HasFailure()) return;
  }
}

// Single rows with grouped heads: libtorch has a path of its own for these.
TEST_P(CudaAttention, documents_of_one_token_see_only_themselves) {
  const auto flash = kernel(AttentionKernel::flash);
  std::vector<Documents> documents;
  documents.emplace_back(std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6});
  for (const Causality causality : {Causality::causal, Causality::full})
    for (const TokenSpan keys : {TokenSpan{0, 6}, TokenSpan{2, 5}, TokenSpan{4, 5}}) {
      const DrawnMask mask{visible_keys({.causality = causality}, documents, 6, {{0, 6}}, {keys}), 2, ""};
      for (uint64_t seed = 0; seed < 6; ++seed)
        trireme_test::expect_definition(*flash, mask, on_cuda(seed), seed);
    }
}

INSTANTIATE_TEST_SUITE_P(HalfPrecision, CudaAttention, ::testing::Values(at::kHalf, at::kBFloat16),
                         [](const auto& dtype) { return std::string(c10::toString(dtype.param)); });

}  // namespace
}  // namespace trireme
