// The incumbents' inventory, held against sums made by hand from their source, and against what was
// published.
#include "bench/incumbents/incumbent_memory.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "bench/incumbents/caching_allocator.h"
#include "tests/plan/incumbent_points.h"

namespace trireme::testing {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

TEST(CachingAllocator, fills_the_smallest_hole_that_is_large_enough) {
  CachingAllocator allocator(1);
  const int64_t large = allocator.allocate(0, 60 * kMebibyte), between = allocator.allocate(0, kMebibyte);
  const int64_t small = allocator.allocate(0, 20 * kMebibyte);
  allocator.allocate(0, kMebibyte);
  allocator.release(0, large);
  allocator.release(0, small);
  EXPECT_EQ(allocator.allocate(0, 20 * kMebibyte), small);
  allocator.release(0, between);  // joins the large hole before it
  EXPECT_EQ(allocator.allocate(0, 61 * kMebibyte), large);
}

TEST(CachingAllocator, keeps_a_hole_mapped_that_is_too_small) {
  CachingAllocator allocator(1);
  const int64_t logits = allocator.allocate(0, 200 * kMebibyte);
  allocator.allocate(0, 400 * kMebibyte);
  allocator.release(0, logits);
  allocator.allocate(0, 400 * kMebibyte);
  EXPECT_EQ(allocator.held_bytes(), 800 * kMebibyte);
  EXPECT_EQ(allocator.mapped_bytes(), 1000 * kMebibyte);
}

TEST(CachingAllocator, extends_the_last_hole_and_keeps_streams_apart) {
  CachingAllocator allocator(2);
  allocator.release(0, allocator.allocate(0, 100 * kMebibyte));
  EXPECT_EQ(allocator.allocate(0, 140 * kMebibyte), 0);
  EXPECT_EQ(allocator.mapped_bytes(), 140 * kMebibyte);
  EXPECT_EQ(allocator.allocate(1, 60 * kMebibyte), 0);
  EXPECT_EQ(allocator.mapped_bytes(), 200 * kMebibyte);
}

// With whole logits: log-softmax, its gradient and the logits', all in fp32, so 12 bytes a logit.
TEST(IncumbentMemory, of_whole_logits_is_twelve_bytes_a_logit) {
  const int64_t tokens = 65'536, hidden = tokens * 4096 * 2, kept = 32 * hidden;
  const IncumbentMemory memory = incumbent_memory({llama_3_8b(), 1, 1, tokens, alst(0, true)});
  EXPECT_EQ(memory.fullest_phase, "the loss's backward");
  // The final norm keeps its input in fp32 and scaled in bf16, and its output is the head's input; cosines
  // and sines; four int64 a token; the bucket of 5e8 elements; cuBLAS's workspace. And as many parameters as
  // may be live, 1e9: the head, the last layer, the one before it, and attention's matrices of another.
  const int64_t attention = 2 * 4096 * (4096 + 1024), layer = attention + int64_t{3} * 4096 * 14336;
  const int64_t live = 128256 * 4096 + 2 * layer + attention;
  EXPECT_EQ(live, 1'003'487'232);
  const int64_t fixed = 2 * live + 1'000'000'000 + 32 * kMebibyte;
  const int64_t expected = 12 * tokens * 128256 + kept + 4 * hidden + tokens * (512 + 32) + fixed;
  EXPECT_NEAR(static_cast<double>(memory.held_bytes), static_cast<double>(expected), 512.0 * 100);
}

double held_a_token(IncumbentRun run) {
  run.tokens = 512'000 * run.sequence_ranks;
  const int64_t held = incumbent_memory(run).held_bytes;
  run.tokens *= 2;
  return static_cast<double>(incumbent_memory(run).held_bytes - held) / 512'000;
}

// What bench/peers/incumbent_layer_memory.py measures of their code, in [s, M] of bf16, here 8,192 bytes a
// token. Beside it of each token: cosines and sines 512, four int64, a norm's RSTD; of each of h heads
// log-sum-exp and softmax_d in fp32.
TEST(IncumbentMemory, of_a_layer_is_what_autograd_holds_of_their_code) {
  constexpr double kHidden = 8192, kToken = 512 + 32 + 4;
  for (const int ranks : {1, 8}) {
    const double of_heads = 32 * 4;  // h of each of S tokens: H of each of s
    const IncumbentRun tiled{llama_3_8b(), ranks, ranks, 0, alst(3, ranks == 1)};
    EXPECT_NEAR(held_a_token(tiled), 14 * kHidden + kToken + 2 * of_heads, 1) << ranks << " ranks";
    const IncumbentRun whole{llama_3_8b(), ranks, ranks, 0, alst(2, ranks == 1)};
    EXPECT_NEAR(held_a_token(whole), (ranks == 1 ? 22.5 : 23.5) * kHidden + kToken + 4 + of_heads, 1)
        << ranks << " ranks";
  }
}

// Under sdpa keys and values of [s, K, D] are kept, and their gradients come, as [s, H, D] each;
// FlashAttention-2 in PyTorch then needs no gradients of its own of that width.
TEST(IncumbentMemory, with_sdpa_is_one_hidden_value_more) {
  for (const int ranks : {1, 8}) {
    IncumbentRun run{llama_3_8b(), ranks, ranks, 0, alst(3, ranks == 1)};
    run.policy.flash = FlashAttention::torch_sdpa;
    EXPECT_NEAR(held_a_token(run), 15 * 8192 + 512 + 32 + 4 + 2 * 32 * 4, 1) << ranks << " ranks";
  }
}

// Liger's norms of query and key keep what they were given: 9 [s, H, D] and 5 [s, K, D] beside 5 [s, M]. Fp32
// of each token: a norm's RSTD, those of H and K heads, log-sum-exp and softmax_d.
TEST(IncumbentMemory, of_a_layer_with_norms_of_query_and_key_has_their_inputs) {
  EXPECT_NEAR(held_a_token({qwen3_32b(), 1, 1, 0, alst(3, true)}),
              2 * (9 * 8192 + 5 * 1024 + 5 * 5120) + 512 + 32 + 4 * (1 + 64 + 8 + 2 * 64), 1);
}

TEST(IncumbentMemory, has_nccls_buffers_on_one_machine) {
  constexpr int64_t kGather = 256 * kMebibyte, kPeer = 384 * kMebibyte;
  EXPECT_EQ(incumbent_nccl_bytes({llama_3_8b(), 1, 1, 1000, {}}), 0);
  EXPECT_EQ(incumbent_nccl_bytes({llama_3_8b(), 16, 16, 1000, {}}), 0);
  EXPECT_EQ(incumbent_nccl_bytes({llama_3_8b(), 8, 1, 1000, {}}), 2 * kGather);
  const int64_t eight = incumbent_nccl_bytes({llama_3_8b(), 8, 8, 1000, {}});
  EXPECT_NEAR(static_cast<double>(eight - 3 * kGather) / kGibibyte, 3.28, 1e-6);
  EXPECT_EQ(eight - incumbent_nccl_bytes({llama_3_8b(), 4, 4, 1000, {}}), 4 * kPeer);
  const IncumbentMemory memory = incumbent_memory({llama_3_8b(), 8, 8, 100'000, {}});
  EXPECT_EQ(memory.device_bytes(), memory.mapped_bytes + eight + kIncumbentProcess_bytes);
}

// FlashAttention-3 sums dk and dv of key/value heads in fp32, 1, where 2 keeps them of all query heads, 2.
TEST(IncumbentMemory, with_flash_attention_3_is_one_hidden_value_less) {
  EXPECT_NEAR(held_a_token({llama_3_8b(), 1, 1, 0, alst(3, true, true)}),
              13 * 8192 + 512 + 32 + 4 + 3 * 32 * 4, 1);
}

TEST(IncumbentMemory, is_the_sum_of_its_buffers) {
  for (const PublishedLength& point : published_lengths()) {
    const IncumbentMemory memory = incumbent_memory(point.run);
    int64_t sum = 0;
    for (const IncumbentBuffer& buffer : memory.buffers) {
      sum += buffer.bytes;
      EXPECT_FALSE(buffer.source.empty()) << buffer.name;
    }
    EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(memory.held_bytes), 1e6) << point.name;
    EXPECT_GE(memory.mapped_bytes, memory.held_bytes);
  }
}

TEST(IncumbentMemory, without_offload_holds_16_bytes_a_parameter_shared_by_the_ranks) {
  IncumbentRun run = blog_run(8192);
  const int64_t shared = incumbent_memory(run).held_bytes;
  EXPECT_EQ(incumbent_parameters(run.model), 4'022'468'096);
  run.policy.offload_optimizer = true;
  const int64_t offloaded = incumbent_memory(run).held_bytes;
  EXPECT_GT(shared - offloaded, incumbent_parameters(run.model) / 4 * 14 * 9 / 10);
}

TEST(IncumbentMemory, ends_where_liger_counts_rows_in_32_bits) {
  IncumbentRun run{llama_3_8b(), 1, 1, 0, alst(3, true)};
  EXPECT_EQ(incumbent_longest_tokens(run, kH100_bytes), 524'000);  // 2^31 / 4096, in thousands
  run.policy.indices_32_bit = false;
  EXPECT_GT(incumbent_longest_tokens(run, kH100_bytes), 600'000);
}

TEST(IncumbentMemory, longest_is_the_last_that_fits) {
  IncumbentRun run{llama_3_8b(), 8, 8, 0, alst(2, false)};
  run.tokens = incumbent_longest_tokens(run, kH100_bytes);
  EXPECT_LE(incumbent_memory(run).device_bytes(), kH100_bytes);
  run.tokens += 1000;
  EXPECT_GT(incumbent_memory(run).device_bytes(), kH100_bytes);
  EXPECT_EQ(incumbent_longest_tokens(run, 2 * kGibibyte), 0);
}

TEST(IncumbentMemory, refuses_what_deepspeed_refuses) {
  IncumbentRun run{llama_3_8b(), 3, 3, 1000, {}};
  EXPECT_THROW(incumbent_memory(run), ConfigError);
  run.ranks = run.sequence_ranks = 8;
  run.tokens = 0;
  EXPECT_THROW(incumbent_memory(run), ConfigError);
  run.ranks = 6;
  EXPECT_THROW(incumbent_longest_tokens(run, kH100_bytes), ConfigError);
}

// The bar. A point with a note misses it, and says why on the page: docs/benchmarks/history.
TEST(IncumbentMemory, gives_back_published_lengths_within_15_percent) {
  for (const PublishedLength& point : published_lengths()) {
    const auto longest = static_cast<double>(incumbent_longest_tokens(point.run, point.device_bytes));
    const double miss = std::abs(relative_miss(longest, static_cast<double>(point.run.tokens)));
    EXPECT_EQ(miss < 0.15, point.note.empty())
        << point.name << ": " << longest << " for " << point.run.tokens;
  }
}

TEST(IncumbentMemory, gives_back_published_memory_within_16_percent_or_says_why) {
  for (const PublishedMemory& point : published_memory()) {
    const IncumbentMemory memory = incumbent_memory(point.run);
    const int64_t bytes = point.kind == MemoryKind::held ? memory.held_bytes : memory.device_bytes();
    const double miss = std::abs(relative_miss(static_cast<double>(bytes) / kGibibyte, point.gibibytes));
    EXPECT_EQ(miss < 0.16, point.note.empty()) << point.name << ": " << miss;
  }
  EXPECT_GT(incumbent_memory(blog_run(131'072)).device_bytes(), kH100_bytes) << "the blog ran out of memory";
}

TEST(IncumbentTime, gives_back_published_rates_of_long_sequences_within_15_percent) {
  for (const PublishedTime& point : published_times()) {
    const IncumbentTime time = incumbent_time(point.run, h100_rates(), kH100Streamed, point.accumulation);
    EXPECT_LT(std::abs(relative_miss(time.tokens_per_second, point.tokens_per_second)), 0.15) << point.name;
  }
}

}  // namespace
}  // namespace trireme::testing
