// Laws of attention by calls, with the kernels that a GPU runs, on the CPU: the operators of libtorch that
// they call are played (flash_operators.h), demand what the real ones demand, and leave NaN what the real
// ones leave unwritten.
#include "trireme/kernels/cuda_calls.h"

#include <array>
#include <cmath>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/sample_layout.h"
#include "trireme/kernels/cuda_kernels.h"

#include "tests/kernels/band_laws.h"
#include "tests/kernels/flash_operators.h"
#include "tests/kernels/operator_calls.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using trireme_test::calls_of;
using trireme_test::draw_heads;
using trireme_test::draw_mask;
using trireme_test::DrawnMask;
using trireme_test::LawCase;
using trireme_test::whole;

constexpr const char* kFlash = "_flash_attention_forward";
constexpr const char* kCudnn = "_cudnn_attention_forward";
constexpr const char* kEfficient = "_efficient_attention_forward";

std::unique_ptr<CallsAttention> flash() {
  return attention_by_calls(make_cuda_flash_kernel());
}
// As 'auto' is in 16 bits, and in 32.
std::unique_ptr<CallsAttention> both() {
  return attention_by_calls(make_cudnn_kernel(), make_cuda_flash_kernel(), make_cuda_wide_heads_kernel());
}
// The same, with documents of 64 tokens long enough for calls of their own.
std::unique_ptr<CallsAttention> long_ones_alone() {
  return attention_by_calls(make_cudnn_kernel({.least_pair_values = 1}), make_cuda_flash_kernel());
}
std::unique_ptr<CallsAttention> fp32() {
  return attention_by_calls(make_cuda_efficient_kernel(), make_cuda_tiles_kernel());
}
// With few bytes a tile has 64 rows and a call several.
std::unique_ptr<CallsAttention> tiles(int64_t most_tile_bytes = kTilesAtOnce_bytes) {
  return attention_by_calls(make_cuda_tiles_kernel(most_tile_bytes));
}

LawCase in_16_bits(uint64_t seed) {
  return trireme_test::draw_in_16_bits(seed, seed % 2 == 0 ? 32 : 40,
                                       seed % 4 < 2 ? at::kBFloat16 : at::kHalf);
}

// Calls of an operator since the counter was made.
class CallCounter {
 public:
  explicit CallCounter(const char* name) : name_(name), before_(calls_of(name)) {}
  int64_t calls() const { return calls_of(name_) - before_; }

 private:
  const char* name_;
  int64_t before_;
};

TEST(CallsAttention, equals_the_definition_on_random_masks_in_16_bits) {
  const auto alone = flash(), automatic = both();
  for (uint64_t seed = 0; seed < 160; ++seed) {
    const DrawnMask mask = draw_mask(seed, seed % 16 == 3 ? 160 : 40);
    SCOPED_TRACE(mask.text);
    trireme_test::expect_definition(seed % 2 == 0 ? *alone : *automatic, mask, in_16_bits(seed), seed);
    if (HasFailure()) return;
  }
}

TEST(CallsAttention, equals_the_definition_on_random_masks_in_fp32) {
  const auto attention = fp32();
  const CallCounter efficient(kEfficient);
  for (uint64_t seed = 0; seed < 80; ++seed) {
    const DrawnMask mask = draw_mask(seed, 40);
    SCOPED_TRACE(mask.text);
    trireme_test::expect_definition(*attention, mask, draw_heads(seed), seed);
    if (HasFailure()) return;
  }
  EXPECT_GT(efficient.calls(), 0);
}

TEST(CallsAttention, by_tiles_equals_the_definition_on_random_masks_of_any_dtype_with_and_without_a_cap) {
  const auto large = tiles(), small = tiles(1);
  for (uint64_t seed = 0; seed < 160; ++seed) {
    const DrawnMask mask = draw_mask(seed, seed % 5 == 3 ? 200 : 40);
    SCOPED_TRACE(mask.text);
    LawCase c = seed % 3 == 0 ? draw_heads(seed) : in_16_bits(seed);
    if (seed / 3 % 2 == 0) c.cap = 1.5;
    trireme_test::expect_definition(seed % 2 == 0 ? *large : *small, mask, c, seed);
    if (HasFailure()) return;
  }
}

// Blocks of 64 rows and one, of as many key/value heads as query heads too.
TEST(CallsAttention, by_tiles_equals_the_definition_in_several_blocks_of_rows) {
  const auto attention = tiles(1);
  for (const int64_t tokens : {65, 129})
    for (const auto& [kv_of_query, kv_heads] :
         {std::pair<std::vector<int>, int64_t>{{0, 0, 1, 1}, 2}, {{0, 1}, 2}}) {
      SCOPED_TRACE(tokens);
      const LawCase c{.kv_of_query = kv_of_query,
                      .kv_heads = kv_heads,
                      .dtype = at::kBFloat16,
                      .cap = 2,
                      .tolerance = 2e-2};
      trireme_test::expect_definition(*attention, whole(Causality::causal, tokens), c, 1);
    }
}

TEST(CallsAttention, by_tiles_takes_more_keys_than_a_tile_has) {
  const auto attention = tiles();
  const int64_t tokens = 2 * kScoreTile_keys + 13;
  for (const int64_t window : {0, 2100}) {
    const DrawnMask mask{causal_keys(tokens, window), 1, ""};
    trireme_test::expect_definition(*attention, mask, {.kv_of_query = {0, 0}, .width = 8, .cap = 2}, 1);
  }
}

TEST(CallsAttention, a_capped_score_is_refused_by_kernels_that_cap_none) {
  const at::Tensor q = at::randn({1, 128, 1, 64}).to(at::kHalf);
  const AttentionSpec plain{{1}, causal_keys(128), {0}, ResultDtype::of_input};
  AttentionSpec capped = plain;
  capped.scores.cap = 50;
  const auto attention = both();
  attention->forward(q, q, q, plain);  // the same mask's calls are known
  EXPECT_THAT(testing::message_of<ConfigError>([&] { attention->forward(q, q, q, capped); }),
              HasSubstr("caps no scores; use --attention auto"));
}

// Gemma 4's heads of 512, whole samples and packed ones.
TEST(CallsAttention, heads_wider_than_256_equal_the_definition_in_16_bits) {
  const auto attention = both();
  const DrawnMask packed{visible_keys({}, {Documents({0, 30, 31, 90})}, 90, {{0, 90}}, {{0, 90}}), 1, ""};
  for (uint64_t seed = 0; seed < 6; ++seed) {
    LawCase c = in_16_bits(seed);
    c.width = std::array{256, 264, 512}[seed % 3];
    for (const DrawnMask& mask : {whole(Causality::causal, 65), whole(Causality::full, 40), packed}) {
      const CallCounter efficient(kEfficient);
      trireme_test::expect_definition(*attention, mask, c, seed);
      EXPECT_EQ(efficient.calls() > 0, c.width > 256) << c.width;
      if (HasFailure()) return;
    }
  }
}

TEST(CallsAttention, a_width_that_no_kernel_takes_is_refused_by_the_one_of_such_widths) {
  const auto attention = both();
  for (const auto& [width, refusal] :
       {std::pair<int64_t, const char*>{12, "'flash (CUDA, FlashAttention-2)': got head width 12"},
        {300, "'efficient (CUDA, 16 bits)': got head width 300"}}) {
    const at::Tensor q = at::randn({1, 128, 1, width}).to(at::kHalf);
    const AttentionSpec spec{{1}, causal_keys(128), {0}, ResultDtype::of_input};
    EXPECT_THAT(testing::message_of<ConfigError>([&] { attention->forward(q, q, q, spec); }),
                HasSubstr(refusal));
  }
}

TEST(CallsAttention, cudnn_equals_the_definition_whole_and_in_parts) {
  const auto attention = attention_by_calls(make_cudnn_kernel());
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const LawCase c = in_16_bits(seed);
    const int64_t odd = 130 + static_cast<int64_t>(seed);
    trireme_test::expect_definition(*attention, whole(Causality::causal, odd), c, seed);
    trireme_test::expect_definition(*attention, whole(Causality::full, odd), c, seed);
    trireme_test::expect_parts_to_sum_up(*attention, whole(Causality::full, 200), c, 201 + 90 + seed);
    if (HasFailure()) return;
  }
}

TEST(CallsAttention, parts_computed_from_the_merged_output_sum_up_to_the_whole) {
  const auto in_16 = flash(), in_32 = fp32();
  for (uint64_t seed = 1000; seed < 1060; ++seed) {
    const DrawnMask mask = draw_mask(seed, 40);
    SCOPED_TRACE(mask.text);
    trireme_test::expect_parts_to_sum_up(*in_16, mask, in_16_bits(seed), seed);
    if (seed % 2 == 0) trireme_test::expect_parts_to_sum_up(*in_32, mask, draw_heads(seed), seed);
    if (HasFailure()) return;
  }
}

// As on a GPU from 64K keys on. Three blocks of 128 keys at most; the last one of 44.
TEST(CallsAttention, a_long_forward_in_blocks_of_keys_equals_the_definition) {
  constexpr int64_t kBlocks = 3;
  const auto whole_calls = attention_by_calls(make_cudnn_kernel());
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const LawCase c = in_16_bits(seed);
    const auto blocks = attention_by_calls(make_cudnn_kernel({.key_block_bytes = 128 * 2 * 2 * c.width}));
    const auto calls = [&](CallsAttention& attention, Causality causality) {
      const CallCounter counter(kCudnn);
      trireme_test::expect_definition(attention, whole(causality, 300), c, seed);
      return counter.calls();
    };
    EXPECT_EQ(calls(*blocks, Causality::causal),
              calls(*whole_calls, Causality::causal) * kBlocks * (kBlocks + 1) / 2);
    EXPECT_EQ(calls(*blocks, Causality::full), calls(*whole_calls, Causality::full) * kBlocks * kBlocks);
    // Keys cut at 150 + seed of 400, as a ring's: rectangles.
    trireme_test::expect_parts_to_sum_up(*blocks, whole(Causality::full, 400), c, 401 + 150 + seed);
    if (HasFailure()) return;
  }
}

// A graph of cuDNN is built for every new size of a call.
TEST(CallsAttention, samples_of_any_length_have_16_sizes_of_graphs_an_octave) {
  const auto attention = attention_by_calls(
      make_cudnn_kernel({.lengths = SampleLengths::any, .least_pair_values = 1}), make_cuda_flash_kernel());
  constexpr int64_t kBatch = 3;  // of no other test's calls
  for (int64_t tokens = 128; tokens < 160; tokens += 5)
    for (const Causality causality : {Causality::causal, Causality::full})
      trireme_test::expect_definition(*attention, whole(causality, tokens, kBatch), in_16_bits(2),
                                      static_cast<uint64_t>(tokens));
  std::set<int64_t> rows;
  for (const std::vector<int64_t>& q_bhsD : trireme_test::query_sizes_of(kCudnn))
    if (q_bhsD[0] == kBatch) rows.insert(q_bhsD[2]);
  EXPECT_EQ(rows, (std::set<int64_t>{128, 136, 144, 152}));
}

// Three samples, two of them of long and short documents in other orders, of 232 tokens.
std::vector<Documents> long_and_short() {
  return {Documents({0, 3, 140, 141, 232}), Documents({0, 232}), Documents({0, 131, 150, 165, 232})};
}

// Rests of 1 to 9 rows stay with the short documents, and their keys are in two calls.
TEST(CallsAttention, long_documents_alone_equal_the_definition) {
  const auto attention = long_ones_alone();
  const CallCounter cudnn(kCudnn), flash_calls(kFlash);
  uint64_t seed = 0;
  for (const LayerMask& mask :
       {LayerMask{}, LayerMask{.window = 135}, LayerMask{.causality = Causality::full}})
    for (const auto& documents : {long_and_short(), {Documents({0, 70, 75, 150, 232})}}) {
      ++seed;
      const DrawnMask whole_samples{visible_keys(mask, documents, 232, {{0, 232}}, {{0, 232}}), 3, ""};
      trireme_test::expect_definition(*attention, whole_samples, in_16_bits(seed), seed);
      // What a rank of a zig-zag ring has of it: a document's parts on both sides of a gap are one square.
      const SampleLayout layout{232, 1, 2};
      for (const int keys : {0, 1}) {
        const DrawnMask part{
            visible_keys(mask, documents, 232, layout.ring_spans(0), layout.ring_spans(keys)), 3, ""};
        trireme_test::expect_definition(*attention, part, in_16_bits(seed), seed);
      }
      trireme_test::expect_parts_to_sum_up(*attention, whole_samples, in_16_bits(seed), 60 * seed);
      if (HasFailure()) return;
    }
  EXPECT_GT(cudnn.calls(), 20);
  EXPECT_GT(flash_calls.calls(), 20);
}

TEST(CallsAttention, long_documents_alone_equal_the_definition_on_random_masks) {
  const auto attention = long_ones_alone();
  const CallCounter cudnn(kCudnn);
  for (uint64_t seed = 3000; seed < 3060; ++seed) {
    const DrawnMask mask = draw_mask(seed, 240);
    SCOPED_TRACE(mask.text);
    trireme_test::expect_definition(*attention, mask, in_16_bits(seed), seed);
    if (HasFailure()) return;
  }
  EXPECT_GT(cudnn.calls(), 0);
}

// A window reaches far behind the keys that a rank has of it.
TEST(CallsAttention, many_rows_of_a_window_over_few_keys_equal_the_definition) {
  const auto attention = flash();
  for (const int64_t keys : {1, 3, 10})
    for (const int64_t window : {20, 35}) {
      const DrawnMask mask{visible_keys({.window = window}, {}, 60, {{10, 60}}, {{10 - keys, 10}}), 2,
                           cat(keys, " keys, window ", window)};
      SCOPED_TRACE(mask.text);
      trireme_test::expect_definition(*attention, mask, in_16_bits(3), 5);
    }
}

int64_t forward_calls_of(const DrawnMask& mask, const LawCase& c, int64_t most_dq_elements) {
  const trireme_test::LoweredDqBound bound(most_dq_elements);
  const auto attention = attention_by_calls(make_cuda_flash_kernel(most_dq_elements));
  const CallCounter counter(kFlash);
  trireme_test::expect_definition(*attention, mask, c, 7);
  return counter.calls();
}

// Two samples of 70 rows are 256 in blocks of 128.
TEST(CallsAttention, heads_whose_dq_the_kernel_cannot_count_are_several_calls) {
  constexpr int64_t kElements = 256 * 32;
  LawCase c = in_16_bits(0);
  c.kv_of_query = {0, 0, 0, 0, 1, 1, 1, 1};
  c.kv_heads = 2;
  const DrawnMask mask = whole(Causality::causal, 70);
  EXPECT_EQ(forward_calls_of(mask, c, kElements * 8), 1);
  EXPECT_EQ(forward_calls_of(mask, c, kElements * 8 - 1), 2);  // a key/value head each
  EXPECT_EQ(forward_calls_of(mask, c, kElements * 4), 2);
  EXPECT_EQ(forward_calls_of(mask, c, kElements * 4 - 1), 4);  // three of its query heads, and one
  EXPECT_EQ(forward_calls_of(mask, c, kElements), 8);
  EXPECT_THROW(forward_calls_of(mask, c, kElements - 1), ConfigError);
}

// As where a long backward would hold too much: whole groups of heads, the same bits.
TEST(CallsAttention, heads_of_a_long_backward_are_several_calls) {
  constexpr int64_t kGroup_bytes = 2 * 128 * (32 + 1) * 4 + 2 * 2 * 70 * 32 * 2;  // of 70 rows and two heads
  LawCase c = in_16_bits(0);
  c.kv_of_query = {0, 0, 1, 1, 2, 2};
  c.kv_heads = 3;
  const DrawnMask mask = whole(Causality::causal, 70, /*batch=*/1);
  const auto backward_calls = [&](CallsAttention& attention, const char* name) {
    const CallCounter counter(name);
    trireme_test::expect_definition(attention, mask, c, 7);
    return counter.calls();
  };
  const auto with_flash = [](int64_t bytes) {
    return attention_by_calls(make_cuda_flash_kernel(std::numeric_limits<int32_t>::max(), bytes));
  };
  const auto with_cudnn = [](int64_t bytes) {
    return attention_by_calls(make_cudnn_kernel({.backward_call_bytes = bytes}));
  };
  for (const auto& [bytes, calls] : {std::pair<int64_t, int64_t>{kGroup_bytes * 3, 1},
                                     {kGroup_bytes * 3 - 1, 2},
                                     {kGroup_bytes * 2 - 1, 3},
                                     {1, 3}}) {
    EXPECT_EQ(backward_calls(*with_flash(bytes), "_flash_attention_backward"), calls) << bytes;
    EXPECT_EQ(backward_calls(*with_cudnn(bytes), "_cudnn_attention_backward"), calls) << bytes;
  }
  const DrawnMask documents{visible_keys({}, {Documents({0, 9, 40, 70})}, 70, {{0, 70}}, {{0, 70}}), 1, ""};
  trireme_test::expect_definition(*with_flash(1), documents, c, 7);
  trireme_test::expect_parts_to_sum_up(*with_flash(1), documents, c, 7);
}

// Rows of packed documents are their own, and 128 more for each; half of the bound is left to these.
TEST(CallsAttention, documents_whose_dq_the_kernel_cannot_count_are_several_calls) {
  LawCase c = in_16_bits(0);
  c.kv_of_query = {0, 0, 1, 1};
  c.kv_heads = 2;
  const DrawnMask two{visible_keys({}, {Documents({0, 100, 300})}, 300, {{0, 300}}, {{0, 300}}), 1, ""};
  EXPECT_EQ(forward_calls_of(two, c, (300 + 2 * 128) * 4 * 32), 1);
  EXPECT_EQ(forward_calls_of(two, c, (300 + 2 * 128) * 4 * 32 - 1), 2);
  const DrawnMask four{visible_keys({}, {Documents({0, 9, 17, 20, 40})}, 40, {{0, 40}}, {{0, 40}}), 1, ""};
  EXPECT_EQ(forward_calls_of(four, c, 2 * 4 * 128 * 4 * 32), 1);
  EXPECT_EQ(forward_calls_of(four, c, 2 * 4 * 128 * 4 * 32 - 1), 2);
}

TEST(CallsAttention, the_documents_of_a_long_step_are_cut_into_calls_that_the_kernel_counts) {
  const AttentionSizes sizes{1, 524288, 524288, 32, 8, 128};
  const auto kernel = make_cuda_flash_kernel();
  EXPECT_EQ(kernel->most_segments(sizes), 2047);
  EXPECT_EQ(kernel->heads_of(mask_calls(*causal_keys(524288), 1).front(), sizes).most_query_heads, 31);
  EXPECT_EQ(kernel->heads_of(mask_calls(*causal_keys(262144), 1).front(), sizes).most_query_heads, 32);
  EXPECT_EQ(kernel->heads_of(mask_calls(*causal_keys(262144), 4).front(), sizes).most_query_heads, 15);
}

// The tensors are in bf16, and the keys are the values too.
void expect_sums_rounded_once(CallsAttention& attention, const at::Tensor& q, const at::Tensor& k,
                              AttentionSpec spec) {
  const AttentionOutput saved = attention.forward(q, k, k, spec);
  const AttentionGradients rounded = attention.backward(q, q, k, k, saved, spec);
  spec.results = ResultDtype::fp32;
  const AttentionGradients sums = attention.backward(q, q, k, k, saved, spec);
  EXPECT_TRUE(at::equal(rounded.dk, sums.dk.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(rounded.dv, sums.dv.to(at::kBFloat16)));
  EXPECT_FALSE(at::equal(sums.dk, rounded.dk.to(at::kFloat)));
}

// Each row a call of its own, and all of them see the last keys.
TEST(CallsAttention, gradients_of_keys_that_calls_share_are_summed_in_fp32) {
  auto keys = std::make_shared<VisibleKeys>();
  keys->key_rows = 40;
  KeyRanges ranges;
  for (int64_t row = 0; row < 15; ++row) {
    ranges.begin.push_back(2 * row);
    ranges.end.push_back(40);
  }
  keys->samples = {ranges};
  ASSERT_EQ(mask_calls(*keys, 1).size(), 15);
  const at::Tensor q = at::randn({1, 15, 1, 16}).to(at::kBFloat16),
                   k = at::randn({1, 40, 1, 16}).to(at::kBFloat16);
  expect_sums_rounded_once(*flash(), q, k, {{0.25}, keys, {0}, ResultDtype::of_input});
}

TEST(CallsAttention, whole_samples_and_packed_documents_are_one_call) {
  const auto attention = both();
  const CallCounter cudnn(kCudnn), flash_calls(kFlash);
  const auto run = [&](const std::vector<Documents>& documents, int64_t window) {
    const auto options = at::TensorOptions(at::kBFloat16);
    const at::Tensor q = at::randn({2, 112, 2, 32}, options), k = at::randn({2, 112, 1, 32}, options);
    const AttentionSpec spec{{1},
                             visible_keys({.window = window}, documents, 112, {{0, 112}}, {{0, 112}}),
                             {0, 0},
                             ResultDtype::of_input};
    attention->forward(q, k, k, spec);
  };
  run({}, 0);
  EXPECT_EQ(cudnn.calls(), 1);
  EXPECT_EQ(flash_calls.calls(), 0);
  run({}, 3);
  run({Documents({0, 5, 112}), Documents({0, 1, 2, 112})}, 0);
  run({Documents({0, 5, 112}), Documents({0, 1, 2, 112})}, 3);
  EXPECT_EQ(cudnn.calls(), 1);
  EXPECT_EQ(flash_calls.calls(), 3);
}

TEST(CallsAttention, each_long_document_is_a_call_of_cudnn_and_the_short_ones_are_one_of_flash) {
  const auto attention = long_ones_alone();
  using Counts = std::pair<int64_t, int64_t>;
  const LawCase c = in_16_bits(0);
  const auto calls = [&](const std::vector<Documents>& documents, int64_t window) {
    const CallCounter cudnn(kCudnn), flash_calls(kFlash);
    const int64_t tokens = documents.front().tokens();
    trireme_test::expect_definition(
        *attention,
        {visible_keys({.window = window}, documents, tokens, {{0, tokens}}, {{0, tokens}}),
         static_cast<int64_t>(documents.size()), ""},
        c, 9);
    return Counts(cudnn.calls(), flash_calls.calls());
  };
  EXPECT_EQ(calls(long_and_short(), 0), Counts(5, 1));
  EXPECT_EQ(calls(long_and_short(), 8), Counts(0, 1));
  EXPECT_EQ(calls({Documents({0, 64, 192, 264})}, 0), Counts(3, 0));  // lengths of graphs
  EXPECT_EQ(calls({Documents({0, 63, 126})}, 0), Counts(0, 1));
  EXPECT_EQ(calls({Documents({0, 64, 128}), Documents({0, 64, 128})}, 0), Counts(2, 0));
}

TEST(CallsAttention, the_rest_of_a_long_document_is_summed_as_in_fp32) {
  const at::Tensor q = at::randn({1, 150, 2, 32}).to(at::kBFloat16),
                   k = at::randn({1, 150, 1, 32}).to(at::kBFloat16);
  expect_sums_rounded_once(*long_ones_alone(), q, k,
                           {{0.2},
                            visible_keys({}, {Documents({0, 9, 150})}, 150, {{0, 150}}, {{0, 150}}),
                            {0, 0},
                            ResultDtype::of_input});
}

TEST(CallsAttention, says_from_what_length_documents_are_calls_of_cudnn) {
  EXPECT_EQ(
      both()->for_documents({32, 4, 128}),
      "packed documents of 4096 tokens or more by cudnn, shorter ones by flash (CUDA, FlashAttention-2)");
  for (const auto& without : {both()->for_documents({32, 4, 256}), both()->for_documents({32, 4, 512}),
                              flash()->for_documents({32, 4, 128}),
                              attention_by_calls(make_cudnn_kernel())->for_documents({32, 4, 128}),
                              fp32()->for_documents({32, 4, 128})})
    EXPECT_EQ(without, "");
}

TEST(CallsAttention, the_segments_of_a_mask_are_made_once_for_all_layers_of_a_step) {
  const auto attention = flash();
  const auto options = at::TensorOptions(at::kBFloat16);
  const at::Tensor q = at::randn({1, 12, 2, 8}, options), k = at::randn({1, 12, 1, 8}, options);
  const int64_t before = trireme_test::distinct_segments();
  for (const int64_t border : {5, 9, 5}) {
    const auto mask = visible_keys({}, {Documents({0, border, 12})}, 12, {{0, 12}}, {{0, 12}});
    AttentionSpec spec{{1}, mask, {0, 0}, ResultDtype::of_input};
    for (int layer = 0; layer < 3; ++layer) {
      spec.scores.scale = 1 + layer;
      const AttentionOutput out = attention->forward(q, k, k, spec);
      attention->backward(q, q, k, k, out, spec);
      EXPECT_FALSE(at::equal(attention->forward(q, k, k, {{7}, mask, {0, 0}, spec.results}).lse, out.lse));
    }
  }
  EXPECT_EQ(trireme_test::distinct_segments() - before, 3 * 2);  // of queries and of keys
}

TEST(CallsAttention, a_mask_that_no_kernel_knows_is_refused) {
  const auto attention = attention_by_calls(make_cudnn_kernel());
  const at::Tensor q = at::randn({1, 128, 1, 32}).to(at::kHalf);
  AttentionSpec spec{{1},
                     visible_keys({}, {Documents({0, 5, 128})}, 128, {{0, 128}}, {{0, 128}}),
                     {0},
                     ResultDtype::of_input};
  EXPECT_THROW(attention->forward(q, q, q, spec), ConfigError);
  const AttentionOutput saved{q, at::zeros({1, 1, 128})};
  EXPECT_THROW(attention->backward(q, q, q, q, saved, spec), ConfigError);
  spec.keys = visible_keys({.sparse = {.block_tokens = 64}}, {}, 128, {{0, 128}}, {{0, 128}});
  EXPECT_THROW(attention->forward(q, q, q, spec), ConfigError);
  EXPECT_THROW(attention->backward(q, q, q, q, saved, spec), ConfigError);
}

TEST(CallsAttention, nothing_in_or_nothing_seen_gives_zeros) {
  const auto attention = flash();
  const CallCounter counter(kFlash);
  const auto run = [&](int64_t tokens, const TokenSpans& queries, const TokenSpans& keys) {
    const at::Tensor q = at::randn({1, size_of(queries), 2, 8}), k = at::randn({1, size_of(keys), 1, 8});
    const AttentionSpec spec{{1}, visible_keys({}, {}, tokens, queries, keys), {0, 0}, ResultDtype::of_input};
    const AttentionOutput out = attention->forward(q, k, k, spec);
    EXPECT_TRUE(at::equal(out.o, at::zeros_like(q)));
    EXPECT_TRUE(out.lse.eq(-INFINITY).all().item<bool>());
    const AttentionGradients g = attention->backward(q, q, k, k, out, spec);
    EXPECT_TRUE(at::equal(g.dq, at::zeros_like(q)));
    EXPECT_TRUE(at::equal(g.dk, at::zeros_like(k)) && at::equal(g.dv, at::zeros_like(k)));
  };
  run(0, {}, {});
  run(5, {{0, 5}}, {});
  run(5, {}, {{0, 5}});
  run(9, {{0, 4}}, {{4, 9}});
  EXPECT_EQ(counter.calls(), 0);
}

TEST(CallsAttention, is_not_the_plain_kernel) {
  EXPECT_FALSE(fp32()->by_reference());
}

}  // namespace
}  // namespace trireme
