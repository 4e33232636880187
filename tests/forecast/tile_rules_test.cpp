// Tiles by rule, held against the sizes of known models. No libtorch.
#include "trireme/forecast/tile_rules.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

struct Widths {
  const char* model;
  int64_t intermediate, vocab;
};
constexpr Widths kModels[] = {{"small", 1408, 8192},           {"Llama 3 1B", 8192, 128256},
                              {"Llama 3 8B", 14336, 128256},   {"Llama 3 70B", 28672, 128256},
                              {"Llama 3 405B", 53248, 128256}, {"Qwen 2.5 7B", 18944, 152064}};

TEST(TileRules, a_gpu_has_whole_blocks_of_256_tokens_and_at_most_a_gibibyte) {
  for (const auto& [model, intermediate, vocab] : kModels) {
    SCOPED_TRACE(model);
    const int64_t tile = tile_tokens_by_rule(intermediate, true),
                  logits = logits_tile_tokens_by_rule(vocab, true);
    for (const int64_t tokens : {tile, logits}) {
      EXPECT_EQ(tokens % 256, 0);
      EXPECT_GE(tokens, 256);
    }
    EXPECT_LE(tile, 8192);
    EXPECT_LE(tile * 2 * intermediate * 4, int64_t{1} << 30);
    EXPECT_LE(logits * vocab * 4, int64_t{1} << 30);
  }
  EXPECT_EQ(tile_tokens_by_rule(8192, true), 8192);
  EXPECT_EQ(tile_tokens_by_rule(14336, true), 8192);
  // Of 32K tokens four, each in whole blocks.
  EXPECT_EQ(largest_tile(32768, tile_tokens_by_rule(14336, true)), 8192);
}

// Qwen3-30B-A3B: of 16 tokens one goes to an expert, of width 768; Mixtral 8x7B: one of 4, of width 14,336.
TEST(TileRules, experts_have_rows_enough_to_read_their_weights_for) {
  EXPECT_EQ(tile_tokens_by_rule(8 * 768, true, 16), 16384);
  EXPECT_EQ(tile_tokens_by_rule(2 * 14336, true, 4), 4608) << "of at most a gibibyte";
  EXPECT_EQ(tile_tokens_by_rule(8 * 768, false, 16), 1024);
  EXPECT_EQ(tile_tokens_by_rule(2 * 14336, false, 4), 256);
  EXPECT_EQ(tile_tokens_by_rule(2 * 14336, false, 8.0 / 3), 256);
  EXPECT_EQ(tile_tokens_by_rule(48, false, 4096), 65536) << "no more, however many experts there are";
  ModelSizes wide{.hidden = 16384, .intermediate = 16};
  wide.experts = 64;
  wide.experts_per_token = 8;
  EXPECT_EQ(tile_tokens_by_rule(wide, true), 2048) << "of rows that are wider than gate and up";
  wide.shared_intermediate = 131072;
  EXPECT_EQ(tile_tokens_by_rule(wide, true), 1024) << "of a shared expert that is wider than both";
}

TEST(TileRules, a_cpu_has_what_its_caches_hold) {
  EXPECT_EQ(tile_tokens_by_rule(1408, false), 2176);
  EXPECT_EQ(tile_tokens_by_rule(14336, false), 256);
  EXPECT_EQ(logits_tile_tokens_by_rule(8192, false), 2048);
  EXPECT_EQ(logits_tile_tokens_by_rule(128256, false), 128);
}

}  // namespace
}  // namespace trireme
