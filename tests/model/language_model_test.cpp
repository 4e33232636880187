#include "trireme/model/language_model.h"

#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/model/computed_fields.h"
#include "trireme/model/model_config.h"
#include "trireme/model/rope_config.h"
#include "trireme/model/rope_override.h"

#include "tests/model/tensor_file.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace language_model_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

// The keys that every text_config gives.
Json text(const Json& more = Json::object()) {
  Json config = {{"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"vocab_size", 100},
                 {"num_hidden_layers", 2},
                 {"max_position_embeddings", 256}};
  config.update(more);
  return config;
}

Json whole(const std::string& type, const Json& text_config, const Json& more = Json::object()) {
  Json config = {{"model_type", type},
                 {"architectures", {"SomeForConditionalGeneration"}},
                 {"vision_config", {{"hidden_size", 8}}},
                 {"text_config", text_config}};
  config.update(more);
  return config;
}

Json inside(const Json& whole) {
  return language_model_of(whole, "config.json", "nowhere").config;
}

class LanguageModels : public ::testing::Test {
 protected:
  // Tensors of two values, of which the second is given.
  void write(const std::vector<std::pair<std::string, float>>& tensors) const {
    testing::NamedTensors named;
    for (const auto& [name, value] : tensors) named.emplace_back(name, at::tensor({1.F, value}));
    testing::write_tensors(folder_ / "model.safetensors", named);
  }
  Json tied(const Json& config) const {
    return language_model_of(config, "config.json", folder_.path())
        .config.value("tie_word_embeddings", Json());
  }

  TemporaryFolder folder_;
};

TEST_F(LanguageModels, a_models_text_config_is_the_config_of_a_model_by_itself) {
  const Json gemma = inside(whole("gemma3", text({{"model_type", "gemma3_text"}})));
  EXPECT_EQ(gemma["model_type"], "gemma3_text");
  EXPECT_EQ(gemma["architectures"], Json({"Gemma3ForCausalLM"}));
  EXPECT_EQ(gemma["hidden_size"], 64);
  EXPECT_FALSE(gemma.contains("vision_config"));
  EXPECT_EQ(parse_model_config(gemma, "inside").num_key_value_heads, 2);

  EXPECT_EQ(inside(whole("mistral3", text()))["model_type"], "mistral")
      << "what transformers takes where it is silent";
  EXPECT_EQ(inside(whole("mistral3", text({{"model_type", "ministral3"}})))["architectures"],
            Json({"Ministral3ForCausalLM"}));
}

TEST_F(LanguageModels, a_model_of_text_alone_is_its_own_file) {
  const Json llama = text({{"model_type", "llama"}});
  const LanguageModel model = language_model_of(llama, "config.json", "nowhere");
  EXPECT_EQ(model.config, llama);
  EXPECT_EQ(model.whole_type, "");
  EXPECT_EQ(language_model_of(whole("gemma3", text()), "config.json", "nowhere").whole_type, "gemma3");
}

// For a token without an image Qwen's three positions are one.
TEST_F(LanguageModels, qwens_rotary_embedding_of_three_positions_is_the_plain_one_of_text) {
  const Json rope = {{"rope_type", "default"},
                     {"rope_theta", 5e6},
                     {"mrope_section", {4, 2, 2}},
                     {"mrope_interleaved", true}};
  const Json qwen3 =
      inside(whole("qwen3_vl", text({{"model_type", "qwen3_vl_text"}, {"rope_parameters", rope}})));
  EXPECT_EQ(qwen3["model_type"], "qwen3");
  EXPECT_EQ(qwen3["rope_parameters"], Json({{"rope_type", "default"}, {"rope_theta", 5e6}}));
  EXPECT_EQ(parse_model_config(qwen3, "inside").rope.theta, 5e6);

  const Json as_published = text({{"model_type", "qwen2_5_vl"},
                                  {"text_config", nullptr},
                                  {"vision_config", {{"depth", 32}}},
                                  {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {4, 2, 2}}}}});
  const Json qwen2 = inside(as_published);
  EXPECT_EQ(qwen2["model_type"], "qwen2");
  EXPECT_EQ(qwen2["rope_scaling"], Json({{"type", "default"}}));
  EXPECT_FALSE(qwen2.contains("vision_config"));
  static_cast<void>(parse_model_config(qwen2, "inside"));
}

TEST_F(LanguageModels, the_ends_of_documents_and_the_dtype_are_those_of_the_whole_where_the_text_is_silent) {
  const Json config = inside(whole(
      "gemma3", text({{"bos_token_id", 7}}),
      {{"eos_token_id", {1, 106}}, {"bos_token_id", 2}, {"torch_dtype", "bfloat16"}, {"pad_token_id", 5}}));
  EXPECT_EQ(config["eos_token_id"], Json({1, 106}));
  EXPECT_EQ(config["bos_token_id"], 7);
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  EXPECT_FALSE(config.contains("pad_token_id")) << "transformers' text model knows its own alone";
}

TEST_F(LanguageModels, the_head_is_the_embedding_as_transformers_loads_it) {
  const Json gemma = whole("gemma3", text()), qwen = whole("qwen3_vl", text());
  EXPECT_EQ(tied(gemma), Json()) << "no weights: the family's own word";
  EXPECT_EQ(tied(whole("gemma3", text(), {{"tie_word_embeddings", false}})), false);
  EXPECT_EQ(tied(whole("qwen3_vl", text(), {{"tie_word_embeddings", true}})), true);

  write({{"language_model.model.embed_tokens.weight", 2}});
  EXPECT_EQ(tied(gemma), true);
  EXPECT_EQ(tied(qwen), false) << "silent means no: reading will miss the head";
  EXPECT_EQ(tied(whole("qwen3_vl", text(), {{"tie_word_embeddings", true}})), true);
  EXPECT_EQ(tied(whole("gemma3", text(), {{"tie_word_embeddings", false}})), false)
      << "and reading will miss the head";

  write({{"language_model.model.embed_tokens.weight", 2}, {"language_model.lm_head.weight", 3}});
  EXPECT_EQ(tied(gemma), false) << "it has other values";
  EXPECT_EQ(tied(whole("gemma3", text(), {{"tie_word_embeddings", true}})), false);

  write({{"model.language_model.embed_tokens.weight", 2}, {"lm_head.weight", 2}});
  EXPECT_EQ(tied(gemma), true);
  EXPECT_EQ(tied(qwen), false) << "silent means no";
  EXPECT_EQ(
      tied(whole("qwen2_5_vl", text({{"tie_word_embeddings", true}}), {{"tie_word_embeddings", false}})),
      true)
      << "files of transformers 4 say it inside";
  EXPECT_EQ(tied(whole("qwen3_vl", text({{"tie_word_embeddings", true}}), {{"tie_word_embeddings", false}})),
            false);
}

TEST_F(LanguageModels, files_that_are_not_all_there_tell_nothing) {
  replace_file(folder_ / "model.safetensors.index.json",
               R"({"weight_map": {"lm_head.weight": "a.safetensors"}})");
  EXPECT_EQ(tied(whole("gemma3", text())), Json());
}

TEST_F(LanguageModels, what_cannot_be_read_is_refused) {
  for (const Json& lacks :
       {Json{{"model_type", "gemma3"}}, Json{{"model_type", "qwen2_vl"}}, text({{"model_type", "gemma3"}})})
    EXPECT_THAT(message_of<ConfigError>([&] { inside(lacks); }), HasSubstr("needs text_config")) << lacks;
  EXPECT_THAT(message_of<ConfigError>([] {
                inside(whole("gemma3", text({{"model_type", "llama"}})));
              }),
              AllOf(HasSubstr("text_config.model_type is \"llama\""),
                    HasSubstr("inside a gemma3 Trireme trains a gemma3_text")));
  EXPECT_THAT(message_of<ConfigError>([] { inside(whole("mistral3", Json(3))); }),
              AllOf(HasSubstr("text_config is 3"), HasSubstr("expected an object")));
  EXPECT_THAT(message_of<ConfigError>([] {
                parse_model_config(
                    inside(whole("mistral3", text(), {{"quantization_config", {{"quant_method", "fp8"}}}})),
                    "x");
              }),
              HasSubstr("quantized weights cannot be trained"));
}

TEST_F(LanguageModels, positions_that_a_run_stretched_are_written_into_the_whole_config) {
  const Json rope = {{"rope_type", "default"}, {"rope_theta", 5e6}, {"mrope_section", {4, 2, 2}}};
  const Json qwen = whole("qwen3_vl", text({{"model_type", "qwen3_vl_text"}, {"rope_parameters", rope}}));
  const ModelConfig config = parse_model_config(inside(qwen), "inside");
  EXPECT_EQ(with_positions_of(qwen, config.raw), qwen) << "nothing was stretched";

  const Json stretched = with_positions_of(qwen, with_rope(config, {.scaling = "yarn:4", .theta = {}}).raw);
  EXPECT_EQ(stretched["text_config"]["max_position_embeddings"], 1024);
  EXPECT_EQ(stretched["text_config"]["rope_parameters"]["rope_type"], "yarn");
  EXPECT_EQ(stretched["text_config"]["rope_parameters"]["mrope_section"], rope["mrope_section"]);
  EXPECT_EQ(stretched["vision_config"], qwen["vision_config"]);
  EXPECT_EQ(inside(stretched)["rope_parameters"],
            with_rope(config, {.scaling = "yarn:4", .theta = {}}).raw["rope_parameters"]);
}

TEST_F(LanguageModels, qwens_three_positions_stay_where_a_run_changed_theta_or_took_a_scaling_away) {
  const Json published =
      whole("qwen2_5_vl",
            text({{"rope_theta", 1e6}, {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {4, 2, 2}}}}}));
  const ModelConfig config = parse_model_config(inside(published), "inside");
  const Json theta =
      with_positions_of(published, with_rope(config, {.scaling = "", .theta = 5e6}).raw)["text_config"];
  EXPECT_EQ(theta["rope_theta"], 5e6);
  EXPECT_EQ(theta["rope_scaling"]["mrope_section"], Json({4, 2, 2}));
  EXPECT_EQ(inside(whole("qwen2_5_vl", theta))["rope_theta"], 5e6);

  const Json stretched = whole("qwen3_vl", text({{"rope_parameters",
                                                  {{"rope_type", "yarn"},
                                                   {"factor", 4},
                                                   {"rope_theta", 5e6},
                                                   {"original_max_position_embeddings", 64},
                                                   {"mrope_section", {4, 2, 2}},
                                                   {"mrope_interleaved", true}}}}));
  const ModelConfig yarn = parse_model_config(inside(stretched), "inside");
  const Json plain = with_positions_of(
      stretched, with_rope(yarn, {.scaling = "default", .theta = {}}).raw)["text_config"]["rope_parameters"];
  EXPECT_EQ(plain, Json({{"rope_type", "default"},
                         {"rope_theta", 5e6},
                         {"mrope_section", {4, 2, 2}},
                         {"mrope_interleaved", true}}));
}

// A run may have begun from a copy that another version of transformers saved: what is written is the run's
// embedding, of which one form alone is there.
TEST_F(LanguageModels, positions_in_another_form_than_the_whole_models_replace_it) {
  const Json newer = whole("qwen3_vl", text({{"rope_parameters",
                                              {{"rope_type", "default"},
                                               {"rope_theta", 7e6},
                                               {"mrope_section", {4, 2, 2}},
                                               {"mrope_interleaved", true}}}}));
  const Json older =
      whole("qwen3_vl",
            text({{"rope_theta", 5e6},
                  {"rope_scaling",
                   {{"rope_type", "default"}, {"mrope_section", {3, 3, 2}}, {"mrope_interleaved", true}}}}));
  for (const char* scaling : {"", "yarn:8"})
    for (const auto& [of_run, into, sections] :
         {std::tuple{newer, older, Json({3, 3, 2})}, {older, newer, Json({4, 2, 2})}}) {
      SCOPED_TRACE(into.dump());
      const ModelConfig run =
          with_rope(parse_model_config(inside(of_run), "run"), {.scaling = scaling, .theta = {}});
      const Json written = with_positions_of(into, run.raw);
      const ModelConfig read = parse_model_config(inside(written), "written");
      EXPECT_EQ(computed_fields(read), computed_fields(run));
      const Json& config = written["text_config"];
      EXPECT_NE(is_filled(config, "rope_parameters"), is_filled(config, "rope_scaling"));
      EXPECT_EQ(config[rope_key(config)]["mrope_section"], sections);
      EXPECT_EQ(config[rope_key(config)]["mrope_interleaved"], true);
    }
}

TEST_F(LanguageModels, the_rotary_embedding_of_sliding_layers_is_the_runs_too) {
  const auto gemma = [](const Json& local) {
    return whole("gemma3", text({{"model_type", "gemma3_text"},
                                 {"head_dim", 16},
                                 {"sliding_window", 8},
                                 {"rope_local_base_freq", local}}));
  };
  const ModelConfig run = parse_model_config(inside(gemma(3000)), "run");
  const Json written = with_positions_of(gemma(10000), run.raw);
  EXPECT_EQ(parse_model_config(inside(written), "written").window_rope->theta, 3000);
}

TEST_F(LanguageModels, a_rope_theta_in_a_dictionary_that_is_not_read_says_nothing) {
  const Json both =
      whole("qwen2_5_vl", text({{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {4, 2, 2}}}},
                                {"rope_parameters", {{"rope_theta", 7e6}}}}));
  EXPECT_EQ(parse_model_config(inside(both), "inside").rope.theta, 1e6);
}

TEST_F(LanguageModels, qwen3_vl_has_no_windows_whatever_its_file_says) {
  const ModelConfig config = parse_model_config(
      inside(whole("qwen3_vl", text({{"use_sliding_window", true},
                                     {"sliding_window", 5},
                                     {"max_window_layers", 0},
                                     {"layer_types", {"full_attention", "sliding_attention"}}}))),
      "inside");
  EXPECT_THAT(config.layer_window, ::testing::Each(0));
}

TEST_F(LanguageModels, what_is_not_said_is_as_transformers_has_it_inside) {
  const Json qwen2 = inside(whole("qwen2_vl", Json::object()));
  const ModelConfig config = parse_model_config(qwen2, "inside");
  EXPECT_EQ(config.hidden_size, 8192);
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.eos_token_id, 151645);
  const ModelConfig qwen3 = parse_model_config(inside(whole("qwen3_vl", Json::object())), "inside");
  EXPECT_EQ(qwen3.rope.theta, 5e5);
  EXPECT_EQ(qwen3.max_position_embeddings, 128000);
  const Json said = {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e6}}}};
  EXPECT_EQ(parse_model_config(inside(whole("qwen3_vl", said)), "inside").rope.theta, 7e6);
}

TEST_F(LanguageModels, positions_in_the_form_before_transformers_5_are_written_in_that_form) {
  const Json mistral = whole("mistral3", text({{"model_type", "mistral"}, {"rope_theta", 1e9}}));
  const ModelConfig config = parse_model_config(inside(mistral), "inside");
  const ModelConfig other = with_rope(config, {.scaling = "linear:2", .theta = 5e9});
  const Json written = with_positions_of(mistral, other.raw)["text_config"];
  EXPECT_EQ(written["rope_theta"], 5e9);
  EXPECT_EQ(written["rope_scaling"], Json({{"rope_type", "linear"}, {"factor", 2.0}}));
  EXPECT_EQ(written["max_position_embeddings"], 512);
  EXPECT_EQ(written["original_max_position_embeddings"], 256);
}

TEST_F(LanguageModels, tensors_have_the_names_of_every_version_of_transformers) {
  EXPECT_THAT(names_inside("model.layers.0.mlp.up_proj.weight"),
              ElementsAre("model.language_model.layers.0.mlp.up_proj.weight",
                          "language_model.model.layers.0.mlp.up_proj.weight"));
  EXPECT_THAT(names_inside("lm_head.weight"), ElementsAre("language_model.lm_head.weight"));
  EXPECT_THAT(names_inside("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"),
              ElementsAre("base_model.model.model.language_model.layers.0.mlp.up_proj.lora_A.weight",
                          "base_model.model.language_model.model.layers.0.mlp.up_proj.lora_A.weight"))
      << "an adapter that PEFT trained inside";
}

}  // namespace
}  // namespace language_model_test
}  // namespace trireme
