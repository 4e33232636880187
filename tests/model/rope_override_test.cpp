// Rotary embeddings by flags: the positions and config.json that they make, and the frequencies beside the
// papers' formulas in fp64, written here once more.
#include "trireme/model/rope_override.h"

#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/model/computed_fields.h"
#include "trireme/model/rotary.h"

#include "tests/support/error_message.h"

namespace trireme::rope_override_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

constexpr int64_t kOriginal = 8192;
constexpr int kHeadDim = 64;
constexpr double kTheta = 500000;

ModelConfig llama(const Json& more = Json::object()) {
  Json json = {{"model_type", "llama"},
               {"hidden_size", 256},
               {"num_attention_heads", 4},
               {"head_dim", kHeadDim},
               {"max_position_embeddings", kOriginal},
               {"rope_theta", kTheta}};
  json.update(more);
  return parse_model_config(json, "llama");
}

ModelConfig with(const std::string& scaling, const ModelConfig& model = llama()) {
  return with_rope(model, {.scaling = scaling, .theta = {}});
}

// theta^(-2i/D), arXiv 2104.09864.
double plain(int pair, double theta = kTheta) {
  return std::pow(theta, -2.0 * pair / kHeadDim);
}

// arXiv 2309.00071, section 3.2: pairs that turn often within the original length are kept, those that turn
// less than once are divided by the factor, with a ramp over the pairs between.
double yarn(int pair, double factor, double beta_fast, double beta_slow) {
  const auto pair_of_turns = [](double turns) {
    return kHeadDim * std::log(kOriginal / (2 * M_PI * turns)) / (2 * std::log(kTheta));
  };
  const double low = std::max(0.0, std::floor(pair_of_turns(beta_fast)));
  const double high = std::min<double>(kHeadDim - 1, std::ceil(pair_of_turns(beta_slow)));
  const double ramp = std::min(1.0, std::max(0.0, (pair - low) / (high - low)));
  return plain(pair) * (1 - ramp) + plain(pair) / factor * ramp;
}

// Llama 3.1 as its authors published it: by wavelength.
double llama3(int pair, double factor, double low, double high) {
  const double wavelength = 2 * M_PI / plain(pair);
  if (wavelength < kOriginal / high) return plain(pair);
  if (wavelength > kOriginal / low) return plain(pair) / factor;
  const double smooth = (kOriginal / wavelength - low) / (high - low);
  return (1 - smooth) * plain(pair) / factor + smooth * plain(pair);
}

struct Case {
  const char* scaling;
  int64_t tokens;
  double (*inverse)(int pair);
  int64_t positions;
  double attention = 1;
};

TEST(RopeOverride, frequencies_are_those_of_the_papers) {
  const Case cases[] = {
      {"linear:4", 32768, [](int i) { return plain(i) / 4; }, 4 * kOriginal},
      {"dynamic:4", 32768,
       [](int i) {
         const double base = kTheta * std::pow(4.0 * 32768 / kOriginal - 3, kHeadDim / (kHeadDim - 2.0));
         return plain(i, base);
       },
       kOriginal},
      {"yarn:64", 524288, [](int i) { return yarn(i, 64, 32, 1); }, 524288, 0.1 * std::log(64.0) + 1},
      {R"({"rope_type": "yarn", "factor": 16, "beta_fast": 20, "attention_factor": 1.5})", 131072,
       [](int i) { return yarn(i, 16, 20, 1); }, 131072, 1.5},
      {"llama3:8", 65536, [](int i) { return llama3(i, 8, 1, 4); }, 65536},
      {"default", 8192, [](int i) { return plain(i); }, kOriginal},
      {R"({"type": "default", "rope_theta": 1e6})", 8192, [](int i) { return plain(i, 1e6); }, kOriginal},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.scaling);
    const ModelConfig config = with(each.scaling);
    const RotaryFrequencies frequencies =
        rotary_frequencies(config, config.rope, config.heads_of_full_attention().width, each.tokens);
    ASSERT_EQ(frequencies.inverse.numel(), kHeadDim / 2);
    for (int i = 0; i < kHeadDim / 2; ++i)
      EXPECT_NEAR(frequencies.inverse[i].item<double>() / each.inverse(i), 1, 1e-5) << "pair " << i;
    EXPECT_NEAR(frequencies.attention_scaling, each.attention, 1e-12);
    EXPECT_EQ(config.max_position_embeddings, each.positions);
    EXPECT_GE(position_reach(config), each.tokens);
  }
}

TEST(RopeOverride, stands_in_config_json_in_the_form_that_was_there) {
  const Json old = with("yarn:16").raw;
  EXPECT_EQ(old["max_position_embeddings"], 131072);
  EXPECT_EQ(old["rope_theta"], kTheta);
  EXPECT_EQ(old["rope_scaling"],
            Json({{"rope_type", "yarn"}, {"factor", 16.0}, {"original_max_position_embeddings", kOriginal}}));
  Json parameters = {{"rope_type", "default"}, {"rope_theta", 20000.0}};
  const Json newer =
      with_rope(llama({{"rope_parameters", parameters}}), {.scaling = "llama3:8", .theta = 5e6}).raw;
  EXPECT_FALSE(newer.contains("rope_scaling"));
  EXPECT_FALSE(newer.contains("rope_theta"));
  EXPECT_EQ(newer["rope_parameters"], Json({{"rope_type", "llama3"},
                                            {"factor", 8.0},
                                            {"low_freq_factor", 1.0},
                                            {"high_freq_factor", 4.0},
                                            {"rope_theta", 5e6},
                                            {"original_max_position_embeddings", kOriginal}}));
  // transformers warns of the key inside of a linear scaling.
  const Json linear = with("linear:4").raw;
  EXPECT_EQ(linear["rope_scaling"], Json({{"rope_type", "linear"}, {"factor", 4.0}}));
  EXPECT_EQ(linear["original_max_position_embeddings"], kOriginal);
}

// Of Gemma 3 the layers of full attention alone are stretched, in both forms of its file.
TEST(RopeOverride, leaves_sliding_layers_with_a_rotary_embedding_of_their_own) {
  const Json sliding = {{"rope_type", "default"}, {"rope_theta", 3000.0}};
  const Json nested = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 7e5}}},
                       {"sliding_attention", sliding}};
  Json json = {{"model_type", "gemma3_text"}, {"hidden_size", 256},   {"num_attention_heads", 4},
               {"num_key_value_heads", 2},    {"head_dim", kHeadDim}, {"max_position_embeddings", kOriginal},
               {"rope_parameters", nested}};
  for (const bool newer : {true, false}) {
    if (!newer) {
      json.erase("rope_parameters");
      json.update({{"rope_theta", 7e5}, {"rope_local_base_freq", 3000.0}});
    }
    const ModelConfig before = parse_model_config(json, "gemma 3"), after = with("yarn:16", before);
    EXPECT_EQ(after.rope.kind, RopeKind::yarn);
    EXPECT_DOUBLE_EQ(after.rope.theta, 7e5);
    EXPECT_EQ(after.max_position_embeddings, 16 * kOriginal);
    EXPECT_EQ(after.window_rope->kind, RopeKind::standard);
    EXPECT_DOUBLE_EQ(after.window_rope->theta, 3000);
    if (newer) {
      EXPECT_EQ(after.raw["rope_parameters"]["sliding_attention"], sliding);
    }
    EXPECT_EQ(with("yarn:16", after).raw, after.raw);
    const ModelConfig theta = with_rope(before, {.scaling = "", .theta = 5e6, .longest_tokens = 99999});
    EXPECT_DOUBLE_EQ(theta.rope.theta, 5e6);
    EXPECT_DOUBLE_EQ(theta.window_rope->theta, 3000);
    EXPECT_EQ(theta.max_position_embeddings, 99999);
  }
}

// Gemma 4 turns a share of each head's pairs, which its own kind alone keeps.
TEST(RopeOverride, stretches_the_pairs_that_turn_and_refuses_to_turn_the_others) {
  const ModelConfig before = parse_model_config({{"model_type", "gemma4_text"},
                                                 {"hidden_size_per_layer_input", 0},
                                                 {"max_position_embeddings", kOriginal}},
                                                "gemma 4");
  const ModelConfig after = with("proportional:4", before);
  EXPECT_DOUBLE_EQ(after.rope.factor, 4);
  EXPECT_DOUBLE_EQ(after.rope.turning_share, 0.25);
  EXPECT_DOUBLE_EQ(after.rope.theta, 1e6);
  EXPECT_EQ(after.max_position_embeddings, 4 * kOriginal);
  EXPECT_EQ(original_positions(after), kOriginal);
  EXPECT_EQ(with("proportional:4", after).raw, after.raw);
  EXPECT_EQ(after.raw["rope_parameters"]["sliding_attention"],
            Json({{"rope_type", "default"}, {"rope_theta", 1e4}}));
  EXPECT_EQ(rope_scaling_to_reach(before, 3 * kOriginal), "proportional:3");
  const ModelConfig theta = with_rope(before, {.scaling = "", .theta = 5e6, .longest_tokens = 99999});
  EXPECT_DOUBLE_EQ(theta.rope.theta, 5e6);
  EXPECT_DOUBLE_EQ(theta.rope.turning_share, 0.25);
  EXPECT_EQ(theta.max_position_embeddings, 99999);
  EXPECT_EQ(with(R"({"rope_type": "proportional", "factor": 4})", before).raw, after.raw);
  for (const char* other : {"yarn:4", "linear:4", "default",
                            R"({"rope_type": "proportional", "factor": 4, "partial_rotary_factor": 1.0})"})
    EXPECT_THAT(message_of<ConfigError>([&] { with(other, before); }), HasSubstr("proportional:4")) << other;
}

TEST(RopeOverride, refuses_to_change_sliding_layers_by_the_positions_of_the_others) {
  for (const Json& sliding :
       {Json({{"rope_type", "yarn"}, {"factor", 2.0}}), Json({{"rope_type", "dynamic"}, {"factor", 2.0}})}) {
    const ModelConfig before = parse_model_config(
        {{"model_type", "gemma3_text"}, {"rope_parameters", {{"sliding_attention", sliding}}}}, "gemma 3");
    EXPECT_THAT(message_of<ConfigError>([&] { with("yarn:4", before); }),
                HasSubstr("rope_parameters.sliding_attention"));
  }
  const Json told = {{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 64}};
  const ModelConfig before = parse_model_config(
      {{"model_type", "gemma3_text"}, {"rope_parameters", {{"sliding_attention", told}}}}, "gemma 3");
  EXPECT_EQ(with("yarn:4", before).window_rope->original_max_position_embeddings, 64);
}

TEST(RopeOverride, refuses_a_model_without_a_layer_that_it_changes) {
  const ModelConfig before = parse_model_config({{"model_type", "gemma3_text"},
                                                 {"num_hidden_layers", 2},
                                                 {"layer_types", {"sliding_attention", "sliding_attention"}}},
                                                "gemma 3");
  EXPECT_THAT(message_of<ConfigError>([&] { with("linear:4", before); }), HasSubstr("every layer"));
  EXPECT_THAT(message_of<ConfigError>([&] { with_rope(before, {.scaling = "", .theta = 5e4}); }),
              HasSubstr("every layer"));
}

TEST(RopeOverride, begins_from_a_type_of_layers_that_says_nothing) {
  const ModelConfig before = parse_model_config(
      {{"model_type", "gemma3_text"}, {"rope_parameters", {{"full_attention", nullptr}}}}, "gemma 3");
  const ModelConfig after = with_rope(before, {.scaling = "", .theta = 5e4});
  EXPECT_DOUBLE_EQ(before.rope.theta, 1e6);
  EXPECT_DOUBLE_EQ(after.rope.theta, 5e4);
}

// As deepseek-coder, which reached 16,384 from 4,096, and vicuna-16k, which reaches 16,384 from these 4,096.
TEST(RopeOverride, a_linear_scaling_that_does_not_say_from_which_length_reaches_the_files_positions) {
  Json file{{"model_type", "llama"},
            {"max_position_embeddings", 16384},
            {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}};
  const ModelConfig published = parse_model_config(file, "config.json");
  EXPECT_EQ(position_reach(published), 16384);
  for (const auto& longer :
       {std::function<void()>([&] { with("linear:8", published); }),
        std::function<void()>([&] { pinned({.scaling = "linear:8", .theta = {}}, published); }),
        std::function<void()>([&] { rope_scaling_to_reach(published, 65536); })})
    EXPECT_THAT(message_of<ConfigError>(longer), HasSubstr("original_max_position_embeddings"));
  EXPECT_EQ(
      with(R"({"rope_type": "linear", "factor": 8, "original_max_position_embeddings": 4096})", published)
          .max_position_embeddings,
      32768);
  file["original_max_position_embeddings"] = 4096;
  const ModelConfig said = parse_model_config(file, "config.json");
  EXPECT_EQ(position_reach(said), 16384);
  EXPECT_EQ(rope_scaling_to_reach(said, 65536), "yarn:16");
  EXPECT_EQ(with("linear:8", said).max_position_embeddings, 32768);
}

// As DeepSeek-R1-0528-Qwen3-8B: its publisher wants no scale of attention.
TEST(RopeOverride, attn_factor_which_transformers_passes_over_is_refused_with_what_it_means) {
  EXPECT_THAT(message_of<ConfigError>([] {
                parse_model_config({{"model_type", "qwen3"},
                                    {"max_position_embeddings", 131072},
                                    {"rope_scaling",
                                     {{"rope_type", "yarn"},
                                      {"factor", 4.0},
                                      {"original_max_position_embeddings", 32768},
                                      {"attn_factor", 0.8782488562869419}}}},
                                   "config.json");
              }),
              AllOf(HasSubstr("attn_factor is 0.878"), HasSubstr("\"attention_factor\": 1")));
}

// transformers looks for it beside the layer types alone (_compute_yarn_parameters).
TEST(RopeOverride,
     truncate_of_a_layer_type_which_transformers_passes_over_is_refused_unless_it_says_the_same) {
  const auto gemma = [](const Json& truncate) {
    const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", truncate}};
    return parse_model_config({{"model_type", "gemma3_text"},
                               {"max_position_embeddings", kOriginal},
                               {"rope_parameters", {{"full_attention", yarn}}}},
                              "gemma 3");
  };
  EXPECT_EQ(gemma(true).rope.kind, RopeKind::yarn);
  EXPECT_TRUE(gemma(nullptr).rope.truncate);
  EXPECT_THAT(message_of<ConfigError>([&] { gemma(false); }),
              HasSubstr("transformers passes this key over where layer types have their own"));
  const char* const said = R"({"rope_type": "yarn", "factor": 16, "truncate": false})";
  EXPECT_THAT(message_of<ConfigError>([&] { with(said, gemma(true)); }), HasSubstr("truncate"));
  EXPECT_FALSE(with(said).rope.truncate) << "of one rotary embedding for all layers it counts";
  EXPECT_FALSE(with(R"({"rope_type": "yarn", "factor": 16, "truncate": null})").rope.truncate)
      << "and null is false";
}

// As published: 131,072 positions beside a linear scaling by 8 are what was reached.
TEST(RopeOverride, a_linear_scaling_of_gemma_3_has_reached_its_positions) {
  const ModelConfig published =
      parse_model_config({{"model_type", "gemma3_text"},
                          {"max_position_embeddings", 131072},
                          {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}},
                         "gemma 3");
  EXPECT_EQ(position_reach(published), 131072);
  const ModelConfig longer = with("linear:32", published);
  EXPECT_EQ(longer.max_position_embeddings, 524288);
  EXPECT_EQ(rope_scaling_to_reach(published, 524288), "linear:32");
  // No length of pretraining stands in the file, and it is the same.
  EXPECT_FALSE(longer.raw.contains("original_max_position_embeddings"));
  EXPECT_EQ(original_positions(longer), 16384);
}

// What a run exports is what the next one stretches: by the length of pretraining, not by what was reached.
TEST(RopeOverride, starts_from_the_length_of_pretraining_however_often) {
  for (const char* before : {"linear:2", "dynamic:2", "yarn:2", "llama3:2"})
    for (const char* after : {"linear:4", "dynamic:4", "yarn:4", "llama3:4", "default"}) {
      SCOPED_TRACE(cat(before, " then ", after));
      const ModelConfig exported = parse_model_config(with(before).raw, "exported");
      const ModelConfig twice = with(after, exported);
      EXPECT_EQ(computed_fields(twice), computed_fields(with(after)));
      EXPECT_EQ(with(after, twice).raw, twice.raw);
    }
  const RopeOverride yarn{.scaling = "yarn:4", .theta = {}};
  const ModelConfig longer = llama({{"max_position_embeddings", 32768}});
  EXPECT_EQ(with_rope(llama(), pinned(yarn, longer)).max_position_embeddings, 4 * 32768);
}

TEST(RopeOverride, queries_stay_scaled_by_the_length_of_pretraining) {
  const ModelConfig ministral = parse_model_config({{"model_type", "ministral3"},
                                                    {"max_position_embeddings", 262144},
                                                    {"rope_parameters",
                                                     {{"rope_type", "yarn"},
                                                      {"rope_theta", 1e6},
                                                      {"factor", 16},
                                                      {"mscale", 1},
                                                      {"mscale_all_dim", 1},
                                                      {"original_max_position_embeddings", 16384},
                                                      {"llama_4_scaling_beta", 0.1}}}},
                                                   "ministral3");
  for (const char* scaling : {"yarn:64", "linear:64", "dynamic:64", "llama3:64", "default"}) {
    SCOPED_TRACE(scaling);
    const ModelConfig stretched = with(scaling, ministral);
    ASSERT_TRUE(stretched.rope.query_scaling.has_value());
    EXPECT_EQ(stretched.rope.query_scaling->beta, 0.1);
    EXPECT_EQ(stretched.rope.query_scaling->original_positions, 16384);
    EXPECT_EQ(position_reach(stretched), std::string(scaling) == "default" ? 16384 : 1048576);
    EXPECT_EQ(computed_fields(stretched)["rope query scaling beta"], 0.1);
    EXPECT_EQ(stretched.raw["rope_parameters"]["original_max_position_embeddings"], 16384)
        << "read by transformers";
  }
  EXPECT_EQ(rotary_frequencies(with("yarn:64", ministral), with("yarn:64", ministral).rope, 16, 1)
                .attention_scaling,
            1)
      << "as its mscales have it, whatever the factor";
  EXPECT_THAT(message_of<ConfigError>([&] {
                with(R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 512})",
                     ministral);
              }),
              HasSubstr("scales its queries by 16384"));
}

TEST(RopeOverride, queries_stay_scaled_in_the_form_before_transformers_5) {
  const ModelConfig ministral = parse_model_config({{"model_type", "ministral3"},
                                                    {"rope_theta", 1e6},
                                                    {"rope_scaling",
                                                     {{"rope_type", "yarn"},
                                                      {"factor", 16},
                                                      {"original_max_position_embeddings", 16384},
                                                      {"llama_4_scaling_beta", 0.1}}}},
                                                   "ministral3");
  EXPECT_EQ(with("default", ministral).rope.query_scaling->beta, 0.1);
  EXPECT_EQ(with_rope(with("default", ministral), {.scaling = "", .theta = 5e6}).rope.query_scaling->beta,
            0.1);
}

TEST(RopeOverride, a_factor_of_the_models_own_kind_leaves_its_other_numbers) {
  const ModelConfig yarn =
      llama({{"rope_scaling",
              {{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 20}, {"attention_factor", 1.5}}}});
  EXPECT_EQ(with("yarn:8", yarn).rope.factor, 8);
  EXPECT_EQ(with("yarn:8", yarn).rope.beta_fast, 20);
  EXPECT_EQ(with("yarn:8", yarn).rope.attention_factor, 1.5);
  EXPECT_EQ(with(R"({"rope_type": "yarn", "factor": 8})", yarn).rope.beta_fast, 32) << "an object says all";
  const ModelConfig llama3 = llama(
      {{"rope_scaling",
        {{"rope_type", "llama3"}, {"factor", 2}, {"low_freq_factor", 2.0}, {"high_freq_factor", 8.0}}}});
  EXPECT_EQ(with("llama3:8", llama3).rope.high_freq_factor, 8);
  EXPECT_EQ(with_rope(yarn, pinned({.scaling = "yarn:8", .theta = {}}, yarn)).rope.beta_fast, 20)
      << "in every stage";
}

TEST(RopeOverride, theta_alone_grows_the_positions_to_the_length_and_keeps_a_scaling) {
  const RopeOverride theta{.scaling = "", .theta = 5e6, .longest_tokens = 32768};
  const ModelConfig config = with_rope(llama(), theta);
  EXPECT_EQ(config.rope.theta, 5e6);
  EXPECT_EQ(config.max_position_embeddings, 32768);
  EXPECT_EQ(rope_text(config), "rope default, theta 5000000: 32,768 positions");
  const ModelConfig scaled = with_rope(with("yarn:2"), theta);
  EXPECT_EQ(scaled.rope.kind, RopeKind::yarn);
  EXPECT_EQ(scaled.rope.theta, 5e6);
  EXPECT_EQ(scaled.max_position_embeddings, 2 * kOriginal);
  EXPECT_EQ(with_rope(llama(), {}).raw, llama().raw);
}

TEST(RopeOverride, of_qwen3_tells_the_length_from_which_qwen_publishes_it) {
  for (const char* type : {"qwen3", "qwen3_moe"}) {
    const ModelConfig qwen3 =
        llama({{"model_type", type}, {"num_key_value_heads", 4}, {"max_position_embeddings", 40960}});
    const std::string note = published_scaling_note(with("yarn:4", qwen3));
    const std::string theirs =
        R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768})";
    EXPECT_THAT(note, AllOf(HasSubstr("40,960"), HasSubstr(cat("--rope_scaling '", theirs, "'"))));
    const ModelConfig published = with(theirs, qwen3);
    EXPECT_EQ(published.max_position_embeddings, 131072);
    EXPECT_EQ(published_scaling_note(published), "");
    EXPECT_EQ(published_scaling_note(qwen3), "");
    EXPECT_EQ(published_scaling_note(with("linear:4", qwen3)), "");
  }
  EXPECT_EQ(published_scaling_note(with("yarn:4", llama({{"max_position_embeddings", 40960}}))), "");
}

TEST(RopeOverride, what_means_nothing_is_refused_with_the_forms) {
  const auto refusal = [](const std::string& scaling, std::optional<double> theta = {}) {
    return message_of<ConfigError>([&] { with_rope(llama(), {.scaling = scaling, .theta = theta}); });
  };
  EXPECT_THAT(refusal("jarn:4"), HasSubstr("'jarn:4'; expected yarn:16, linear:4"));
  EXPECT_THAT(refusal("yarn"), HasSubstr("expected a number of 1 or more"));
  EXPECT_THAT(refusal("yarn:four"), HasSubstr("yarn:four"));
  EXPECT_THAT(refusal("yarn:nan"), HasSubstr("'yarn:nan'; expected"));
  EXPECT_THAT(refusal(R"({"rope_type": "yarn", "factor": 4, "beta_fsat": 8})"),
              HasSubstr("did you mean 'beta_fast'?"));
  EXPECT_THAT(refusal("yarn:0.5"), HasSubstr("0.5"));
  EXPECT_THAT(refusal("default:4"), HasSubstr("default has none"));
  EXPECT_THAT(refusal(R"({"rope_type": "yarn", "factor": 4)"), HasSubstr("--rope_scaling"));
  EXPECT_THAT(refusal(R"({"rope_type": "llama3", "factor": 8})"), HasSubstr("low_freq_factor"));
  EXPECT_THAT(refusal(R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0})"),
              HasSubstr("original_max_position_embeddings is 0"));
  EXPECT_THAT(refusal(R"({"rope_type": "linear", "factor": 4, "rope_theta": 1e6})", 5e6),
              HasSubstr("contradicts"));
  const ModelConfig bert = parse_model_config({{"model_type", "bert"}}, "bert");
  EXPECT_THAT(message_of<ConfigError>([&] { with("yarn:4", bert); }), HasSubstr("table of 512 positions"));
}

}  // namespace
}  // namespace trireme::rope_override_test
