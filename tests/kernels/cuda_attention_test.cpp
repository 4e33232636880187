// The kernels on CUDA against the definition. Skipped where there is no GPU.
#include <algorithm>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/device/memory_budget.h"
#include "trireme/kernels/cuda_calls.h"
#include "trireme/kernels/cuda_kernels.h"
#include "trireme/kernels/flash4_sizes.h"

#include "tests/kernels/band_laws.h"

namespace trireme {
namespace {

using trireme_test::draw_heads;
using trireme_test::draw_mask;
using trireme_test::DrawnMask;
using trireme_test::LawCase;
using trireme_test::whole;

class CudaAttention : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }
  static std::unique_ptr<LocalAttention> kernel(AttentionKernel which) {
    return make_local_attention(which, at::kCUDA, GetParam());
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

TEST_P(CudaAttention, by_tiles_equals_the_definition_with_and_without_a_cap) {
  const auto tiles = kernel(AttentionKernel::tiles);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const DrawnMask mask = draw_mask(seed, 400);
    SCOPED_TRACE(mask.text);
    LawCase c = on_cuda(seed);
    if (seed % 2 == 0) c.cap = 1.5;
    trireme_test::expect_definition(*tiles, mask, c, seed);
    if (seed % 4 < 2) trireme_test::expect_parts_to_sum_up(*tiles, mask, c, seed);
    if (HasFailure()) return;
  }
  const auto blocks_of_64_rows = attention_by_calls(make_cuda_tiles_kernel(/*most_tile_bytes=*/1));
  for (const int64_t tokens : {65, 129, 300}) {
    LawCase c = on_cuda(1);
    c.kv_of_query = {0, 1, 2};
    c.kv_heads = 3;
    c.cap = 2;
    trireme_test::expect_definition(*blocks_of_64_rows, whole(Causality::causal, tokens), c, 1);
  }
  for (const int64_t width : {24, 256, 512}) {  // several tiles of keys
    LawCase c = on_cuda(0);
    c.width = width;
    c.cap = 2;
    trireme_test::expect_definition(*tiles, whole(Causality::causal, kScoreTile_keys + 77), c, 1);
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

TEST_P(CudaAttention, cudnn_equals_the_definition_whole_and_in_parts) {
  const auto cudnn = kernel(AttentionKernel::cudnn);
  for (uint64_t seed = 0; seed < 4; ++seed) {  // a graph is built for every shape
    SCOPED_TRACE(seed);
    LawCase c = on_cuda(seed);
    c.width = std::max<int64_t>(32, c.width);
    trireme_test::expect_definition(*cudnn, whole(Causality::causal, 130 + static_cast<int64_t>(seed)), c,
                                    seed);
    trireme_test::expect_definition(*cudnn, whole(Causality::full, 256), c, seed);
    // Keys cut at 90 + seed of 200: both parts are full rectangles.
    trireme_test::expect_parts_to_sum_up(*cudnn, whole(Causality::full, 200), c, 201 + 90 + seed);
    if (HasFailure()) return;
  }
}

TEST_P(CudaAttention, a_long_forward_in_blocks_of_keys_equals_the_definition) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    LawCase c = on_cuda(seed);
    c.width = 64;
    const auto attention = attention_by_calls(make_cudnn_kernel({.key_block_bytes = 128 * 2 * 2 * c.width}));
    trireme_test::expect_definition(*attention, whole(Causality::causal, 300), c, seed);
    trireme_test::expect_definition(*attention, whole(Causality::full, 300), c, seed);
  }
}

TEST_P(CudaAttention, a_long_backward_in_calls_of_a_group_of_heads_equals_the_definition) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    LawCase c = on_cuda(seed);
    c.width = 64;
    c.kv_of_query = {0, 0, 1, 1, 2, 2};
    c.kv_heads = 3;
    const auto attention = attention_by_calls(make_cudnn_kernel({.backward_call_bytes = 1}));
    trireme_test::expect_definition(*attention, whole(Causality::causal, 300), c, seed);
  }
}

// Gemma 4's layers with full attention.
TEST_P(CudaAttention, heads_512_wide_equal_the_definition_whole_and_packed) {
  const auto wide = kernel(AttentionKernel::automatic);
  const DrawnMask packed{visible_keys({}, {Documents({0, 130, 131, 300})}, 300, {{0, 300}}, {{0, 300}}), 1,
                         ""};
  for (uint64_t seed = 0; seed < 4; ++seed) {
    LawCase c = on_cuda(seed);
    c.width = 512;
    for (const DrawnMask& mask : {whole(Causality::causal, 333), whole(Causality::full, 256), packed}) {
      trireme_test::expect_definition(*wide, mask, c, seed);
      if (HasFailure()) return;
    }
  }
}

// Every width and group that the build compiled; batches, strides and head maps as the layers have them.
TEST_P(CudaAttention, flash4_equals_the_definition_whole_and_in_parts) {
  if (GetParam() != at::kBFloat16 || !flash4_lacks().empty()) GTEST_SKIP() << flash4_lacks();
  const auto flash4 = kernel(AttentionKernel::flash4);
  uint64_t seed = 0;
  for (const Flash4Width& width : kFlash4Widths)
    for (int group = 1; group <= kFlash4MostGroup; ++group, ++seed) {
      LawCase c = on_cuda(seed);
      c.width = width.width;
      c.kv_heads = 2;
      c.kv_of_query.assign(static_cast<size_t>(group), 0);
      c.kv_of_query.insert(c.kv_of_query.end(), seed % 3 == 2 ? 1 : static_cast<size_t>(group), 1);
      SCOPED_TRACE(::testing::Message() << width.width << " wide, groups of " << group);
      const int64_t tokens = 1 + static_cast<int64_t>(seed * 37 % 400);
      trireme_test::expect_definition(*flash4, whole(Causality::causal, tokens), c, seed);
      trireme_test::expect_definition(*flash4, whole(Causality::full, tokens), c, seed);
      trireme_test::expect_parts_to_sum_up(*flash4, whole(Causality::full, 200), c, 201 + 90 + seed);
      // The last rows of a sample over all keys, as a rank of a zig-zag ring has them.
      trireme_test::expect_definition(*flash4, {visible_keys({}, {}, 300, {{170, 300}}, {{0, 300}}), 1, ""},
                                      c, seed);
      if (HasFailure()) return;
    }
}

// 16,384 tokens of 1,104 query heads: values beyond the 2^31st, as of 524,288 tokens of 32 heads.
TEST_P(CudaAttention, flash4_counts_values_beyond_32_bits) {
  if (GetParam() != at::kBFloat16 || !flash4_lacks().empty()) GTEST_SKIP() << flash4_lacks();
  constexpr int64_t kTokens = 16'384, kKvHeads = 276, kGroup = 4, kHeads = kKvHeads * kGroup;
  if (device_memory_left_bytes(at::Device(at::kCUDA, 0)) < int64_t{40} << 30)
    GTEST_SKIP() << "less than 40 GiB of the GPU are free";
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor qkv = at::randn({1, kTokens, kHeads + 2 * kKvHeads, 128}, options);
  const auto last = [](const at::Tensor& heads, int64_t count) {
    return heads.narrow(2, heads.size(2) - count, count);
  };
  const at::Tensor q = qkv.narrow(2, 0, kHeads), k = qkv.narrow(2, kHeads, kKvHeads), v = last(qkv, kKvHeads),
                   d_o = at::randn({1, kTokens, kHeads, 128}, options);
  AttentionSpec spec{{0.1}, causal_keys(kTokens), {}, ResultDtype::of_input}, of_one = spec;
  for (int head = 0; head < kHeads; ++head) spec.kv_of_query.push_back(head / kGroup);
  of_one.kv_of_query = {0, 0, 0, 0};
  const auto flash4 = kernel(AttentionKernel::flash4), flash = kernel(AttentionKernel::flash);
  const AttentionOutput out = flash4->forward(q, k, v, spec);
  const AttentionGradients gradients = flash4->backward(d_o, q, k, v, out, spec);
  const at::Tensor q1 = last(q, kGroup).contiguous(), k1 = last(k, 1).contiguous(),
                   v1 = last(v, 1).contiguous();
  const AttentionOutput of_flash = flash->forward(q1, k1, v1, of_one);
  const AttentionGradients theirs =
      flash->backward(last(d_o, kGroup).contiguous(), q1, k1, v1, of_flash, of_one);
  EXPECT_LT((out.lse.narrow(1, kHeads - kGroup, kGroup) - of_flash.lse).abs().max().item<float>(), 1e-4);
  const auto expect_equal = [](const at::Tensor& mine, const at::Tensor& other, const char* name) {
    const at::Tensor wide = other.to(at::kFloat);
    EXPECT_LT((mine.to(at::kFloat) - wide).norm().item<float>(), 1e-2 * wide.norm().item<float>()) << name;
  };
  expect_equal(last(out.o, kGroup), of_flash.o, "o");
  expect_equal(last(gradients.dq, kGroup), theirs.dq, "dq");
  expect_equal(last(gradients.dk, 1), theirs.dk, "dk");
  expect_equal(last(gradients.dv, 1), theirs.dv, "dv");
}

// The kernel lets FlashAttention confirm the first call of each kind.
TEST_P(CudaAttention, graphs_of_segments_equal_the_definition_on_random_masks) {
  const auto packed = kernel(AttentionKernel::cudnn_packed);
  for (uint64_t seed = 0; seed < 12; ++seed) {  // a graph is built for most
    const DrawnMask mask = draw_mask(seed, 400);
    SCOPED_TRACE(mask.text);
    LawCase c = on_cuda(seed);
    c.width = seed % 3 == 0 ? 128 : seed % 3 == 1 ? 64 : 80;
    trireme_test::expect_definition(*packed, mask, c, seed);
    if (HasFailure()) return;
  }
}

// As where a sequence is too long for the kernel's 32 bits.
TEST_P(CudaAttention, heads_in_several_calls_equal_the_definition) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    LawCase c = on_cuda(seed);
    c.kv_of_query = {0, 0, 0, 0, 1, 1, 1, 1};
    c.kv_heads = 2;
    // Of 768 rows of width 128, three heads in a call.
    const auto flash = attention_by_calls(make_cuda_flash_kernel(int64_t{768} * 128 * 3));
    trireme_test::expect_definition(*flash, whole(Causality::causal, 300), c, seed);
    trireme_test::expect_definition(*flash, draw_mask(seed, 300), c, seed);
    if (HasFailure()) return;
  }
}

// Long documents as calls of cuDNN, with rests of 1 to 9 rows that share their keys with FlashAttention's
// call.
TEST_P(CudaAttention, long_documents_alone_equal_the_definition) {
  const auto attention =
      attention_by_calls(make_cudnn_kernel({.least_pair_values = 1}), make_cuda_flash_kernel());
  const std::vector<Documents> documents = {Documents({0, 3, 140, 141, 232}), Documents({0, 232})};
  const DrawnMask mask{visible_keys({}, documents, 232, {{0, 232}}, {{0, 232}}), 2, ""};
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    LawCase c = on_cuda(seed);
    c.width = std::max<int64_t>(32, c.width);
    trireme_test::expect_definition(*attention, mask, c, seed);
    if (HasFailure()) return;
  }
}

// Rows of a window over few keys, which FlashAttention's own bounds would hide.
TEST_P(CudaAttention, many_rows_of_a_window_over_few_keys_equal_the_definition) {
  const auto flash = kernel(AttentionKernel::flash);
  for (const int64_t keys : {1, 3, 10, 130})
    for (const int64_t window : {20, 135}) {
      const DrawnMask mask{visible_keys({.window = window}, {}, 500, {{130, 500}}, {{130 - keys, 130}}), 2,
                           ""};
      SCOPED_TRACE(cat(keys, " keys, window ", window));
      trireme_test::expect_definition(*flash, mask, on_cuda(1), 5);
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

// Products of three TF32 terms; windows go by tiles.
TEST(CudaAttentionInFp32, equals_the_definition_whole_packed_and_in_parts) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const auto attention = make_local_attention(AttentionKernel::automatic, at::kCUDA, at::kFloat);
  const auto case_of = [](uint64_t seed) {
    LawCase c = draw_heads(seed);
    constexpr int64_t kWidths[] = {8, 64, 80, 128};
    c.width = kWidths[seed % 4];
    c.device = at::Device(at::kCUDA, 0);
    c.tolerance = 2e-4;
    return c;
  };
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const DrawnMask mask = draw_mask(seed, 300);
    SCOPED_TRACE(mask.text);
    trireme_test::expect_definition(*attention, mask, case_of(seed), seed);
    if (seed % 4 == 0) trireme_test::expect_parts_to_sum_up(*attention, mask, case_of(seed), seed);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(HalfPrecision, CudaAttention, ::testing::Values(at::kHalf, at::kBFloat16),
                         [](const auto& dtype) { return std::string(c10::toString(dtype.param)); });

}  // namespace
}  // namespace trireme
