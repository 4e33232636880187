// Rotary tables against those that transformers computes (fixtures/rope_tables.json, made by
// make_rope_fixtures.py).
#include "trireme/model/rotary.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/source_folder.h"

namespace trireme {
namespace {

Json rope_tables() {
  return read_json(testing::source_folder() / "tests/model/fixtures/rope_tables.json");
}

RotaryTable table_of(const ModelConfig& config, int64_t tokens, int64_t begin, int64_t count) {
  return make_rotary_table(config, config.rope, config.head_dim, tokens,
                           at::arange(begin, begin + count, at::kLong));
}

double largest_difference(const at::Tensor& got, const Json& expected, int64_t row) {
  double worst = 0;
  const int64_t width = got.size(1);
  for (int64_t i = 0; i < width; ++i)
    worst = std::max(worst, std::abs(got[0][i].item<double>() -
                                     expected[static_cast<size_t>(row * width + i)].get<double>()));
  return worst;
}

TEST(Rotary, tables_equal_those_of_transformers_for_every_kind_in_both_forms) {
  const Json tables = rope_tables();
  ASSERT_GE(tables.size(), 24U);
  for (const Json& table : tables) {
    SCOPED_TRACE(table["name"].get<std::string>());
    const ModelConfig config = parse_model_config(table["config"], table["name"]);
    const auto tokens = table["sequence_tokens"].get<int64_t>();
    const RotaryFrequencies frequencies =
        rotary_frequencies(config, config.rope, config.heads_of_full_attention().width, tokens);
    const Json& inverse = table["inverse_frequencies"];
    ASSERT_EQ(frequencies.inverse.numel(), inverse.size());
    for (size_t i = 0; i < inverse.size(); ++i)
      EXPECT_NEAR(frequencies.inverse[static_cast<int64_t>(i)].item<double>(), inverse[i].get<double>(),
                  1.3e-7 * inverse[i].get<double>())
          << "pair " << i;
    for (size_t p = 0; p < table["positions"].size(); ++p) {
      const auto position = table["positions"][p].get<int64_t>();
      const RotaryTable got = table_of(config, tokens, position, 1);
      EXPECT_LE(largest_difference(got.cos, table["cos"], static_cast<int64_t>(p)), 1e-6)
          << "cos at " << position;
      EXPECT_LE(largest_difference(got.sin, table["sin"], static_cast<int64_t>(p)), 1e-6)
          << "sin at " << position;
    }
  }
}

// 1 + beta log(1 + floor(position / length of pretraining)), in fp64.
TEST(Rotary, queries_are_scaled_by_how_often_their_position_holds_the_length_of_pretraining) {
  ModelConfig config = parse_model_config(rope_tables()[0]["config"], "a model");
  EXPECT_FALSE(table_of(config, 100, 0, 1).query_scale.defined());
  config.rope.query_scaling = QueryScaling{.beta = 0.1, .original_positions = 16384};
  const std::vector<int64_t> positions{0, 16383, 16384, 32767, 32768, 1'000'000};
  const at::Tensor scale =
      make_rotary_table(config, config.rope, config.head_dim, 1 << 20, at::tensor(positions, at::kLong))
          .query_scale;
  ASSERT_EQ(scale.scalar_type(), at::kFloat);
  for (size_t i = 0; i < positions.size(); ++i)
    EXPECT_NEAR(scale[static_cast<int64_t>(i)].item<double>(),
                1 + 0.1 * std::log(1 + std::floor(static_cast<double>(positions[i]) / 16384)), 1e-7)
        << positions[i];
}

TEST(Rotary, a_shard_s_table_is_a_slice_of_the_whole_sequence_s) {
  for (const Json& table : rope_tables()) {
    const ModelConfig config = parse_model_config(table["config"], table["name"]);
    const int64_t tokens = config.max_position_embeddings + 100;
    const RotaryTable whole = table_of(config, tokens, 0, tokens);
    const RotaryTable part = table_of(config, tokens, tokens - 37, 37);
    EXPECT_TRUE(part.cos.equal(whole.cos.slice(0, tokens - 37)));
    EXPECT_TRUE(part.sin.equal(whole.sin.slice(0, tokens - 37)));
    EXPECT_EQ(part.cos.size(1), config.head_dim / 2);
    EXPECT_EQ(part.cos.scalar_type(), at::kFloat);
  }
}

TEST(Rotary, dynamic_ntk_acts_only_beyond_the_length_of_pretraining) {
  Json json = {{"model_type", "llama"},
               {"hidden_size", 64},
               {"num_attention_heads", 4},
               {"max_position_embeddings", 128},
               {"rope_theta", 10000.0}};
  const ModelConfig standard = parse_model_config(json, "plain");
  const auto plain = rotary_frequencies(standard, standard.rope, standard.head_dim, 128).inverse;
  json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  const ModelConfig dynamic = parse_model_config(json, "dynamic");
  const auto inverse = [&](int64_t tokens) {
    return rotary_frequencies(dynamic, dynamic.rope, dynamic.head_dim, tokens).inverse;
  };
  const auto last = [](const at::Tensor& frequencies) { return frequencies[-1].item<double>(); };
  EXPECT_TRUE(inverse(128).equal(plain));
  EXPECT_TRUE(inverse(5).equal(plain));
  EXPECT_LT(last(inverse(129)), last(plain));
  EXPECT_LT(last(inverse(1000)), last(inverse(129)));
}

TEST(Rotary, an_empty_shard_has_an_empty_table) {
  const ModelConfig config = parse_model_config({{"model_type", "llama"}}, "llama");
  const RotaryTable table = table_of(config, 3, 3, 0);
  EXPECT_EQ(table.cos.sizes(), (at::IntArrayRef{0, 64}));
}

}  // namespace
}  // namespace trireme
