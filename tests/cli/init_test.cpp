#include "trireme/cli/init.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/model_presets.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/initial_values.h"
#include "trireme/tokenizer/byte_level_tokenizer.h"

#include "tests/cli/stdout_of.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

class Init : public ::testing::Test {
 protected:
  void init(const std::vector<std::string>& more, const std::string& out = "model") const {
    init_by("--out", out, more);
  }
  void init_by(const std::string& flag, const std::string& out, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{flag, (folder_ / out).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    testing::stdout_of([&] { return run_init(arguments); });
  }
  std::string refusal(const std::vector<std::string>& more) const {
    return testing::message_of<ConfigError>([&] { init(more); });
  }

  TemporaryFolder folder_;
};

TEST_F(Init, takes_the_folder_by_the_names_that_other_commands_have) {
  for (const char* const flag : {"--output", "--output_dir"}) {
    init_by(flag, flag, {"--preset", "tiny"});
    EXPECT_TRUE(fs::exists(folder_ / flag / "config.json"));
  }
}

TEST_F(Init, every_tiny_preset_makes_a_model_that_is_read_back_whole) {
  for (const ModelPreset& preset : model_presets()) {
    if (!preset.byte_level_tokenizer) continue;
    init({"--preset", preset.name, "--seed", "3"}, preset.name);
    const ModelConfig config = read_model_config(folder_ / preset.name);
    const ModelLayout layout = make_model_layout(config);
    const CheckpointReader reader(folder_ / preset.name);
    for (const UnitSpec& unit : layout.units) {
      at::Tensor flat = at::empty({unit.elements}, at::kFloat);
      reader.read_unit(unit, flat);
      EXPECT_TRUE(flat.equal(initial_unit_values(unit, config, 3))) << preset.name << " " << unit.name;
    }
    EXPECT_TRUE(reader.unused_names(layout).empty());
    EXPECT_TRUE(fs::exists(folder_ / preset.name / "tokenizer.json"));
    EXPECT_GE(config.vocab_size, byte_level_vocabulary_size);
  }
}

TEST_F(Init, large_presets_have_the_published_parameter_counts) {
  const auto count = [](const char* name) {
    return make_model_layout(parse_model_config(find_model_preset(name).config, name)).parameter_count();
  };
  EXPECT_EQ(count("llama3-8b"), 8030261248);
  EXPECT_EQ(count("mistral-7b"), 7241732096);
  EXPECT_EQ(count("qwen2-7b"), 7615616512);
  EXPECT_EQ(count("qwen3-4b"), 4022468096);
}

TEST_F(Init, changes_reach_the_configuration_and_nested_keys_too) {
  init({"--preset", "tiny", "--set", "num_hidden_layers=1", "--set", "rope_scaling.rope_type=linear", "--set",
        "rope_scaling.factor=4", "--dtype", "bfloat16"});
  const ModelConfig config = read_model_config(folder_ / "model");
  EXPECT_EQ(config.num_hidden_layers, 1);
  EXPECT_EQ(config.rope.kind, RopeKind::linear);
  EXPECT_EQ(config.raw["torch_dtype"], "bfloat16");
}

// The 8B of 8,192 positions at 512k, as a small one.
TEST_F(Init, rope_scaling_makes_a_model_of_more_positions) {
  init({"--preset", "tiny", "--set", "max_position_embeddings=8192", "--rope_scaling", "yarn:64",
        "--rope_theta", "500000"});
  const ModelConfig config = read_model_config(folder_ / "model");
  EXPECT_EQ(config.rope.kind, RopeKind::yarn);
  EXPECT_EQ(config.rope.theta, 500000);
  EXPECT_EQ(config.max_position_embeddings, 524288);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 8192);
  EXPECT_THAT(refusal({"--preset", "tiny", "--overwrite", "--rope_scaling", "yarn"}),
              HasSubstr("--rope_scaling"));
}

TEST_F(Init, a_wrong_request_suggests_and_writes_nothing) {
  EXPECT_THAT(refusal({"--preset", "tinny"}), HasSubstr("'tiny'"));
  EXPECT_THAT(refusal({"--preset", "tiny", "--set", "hiden_size=3"}), HasSubstr("'hidden_size'"));
  EXPECT_THAT(refusal({"--preset", "tiny", "--set", "hidden_size"}), HasSubstr("key=value"));
  EXPECT_THAT(refusal({"--preset", "tiny", "--set", "hidden_size.x=3"}),
              HasSubstr("'hidden_size' is not an object"));
  EXPECT_THAT(refusal({"--preset", "tiny", "--set", "num_key_value_heads=3"}), HasSubstr("not a multiple"));
  EXPECT_THAT(refusal({"--preset", "tiny", "--set", "vocab_size=100"}), HasSubstr("byte-level tokenizer"));
  EXPECT_THAT(refusal({"--preset", "tiny", "--dtype", "int8"}), HasSubstr("--dtype"));
  EXPECT_THAT(refusal({}), HasSubstr("--preset"));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Init, a_key_that_this_model_does_not_read_is_refused) {
  for (const char* of_others : {"num_experts_per_tok=2", "layer_norm_eps=1e-5", "use_cache=true"})
    EXPECT_THAT(refusal({"--preset", "tiny", "--set", of_others}), HasSubstr("that this model reads"))
        << of_others;
  // Of presets that have the key from another kind of model.
  EXPECT_THAT(refusal({"--preset", "tiny-qwen3-moe", "--set", "intermediate_size=8"}),
              HasSubstr("did you mean 'moe_intermediate_size'?"));
  EXPECT_THAT(refusal({"--preset", "tiny-ministral3", "--set", "rope_theta=5"}),
              HasSubstr("'rope_theta' that this model reads"));
  // Of a window that is not in force transformers reads no width.
  EXPECT_THAT(refusal({"--preset", "tiny-qwen3", "--set", "sliding_window=8"}),
              HasSubstr("'sliding_window' that this model reads"));
  init({"--preset", "tiny-qwen3", "--set", "use_sliding_window=true", "--set", "sliding_window=8", "--set",
        "max_window_layers=1", "--set", "rope_scaling=null"});
  EXPECT_EQ(read_model_config(folder_ / "model").layer_window, (std::vector<int64_t>{0, 8}));
}

TEST_F(Init, a_folder_that_is_not_empty_is_left_alone_unless_asked) {
  init({"--preset", "tiny"});
  std::ofstream(folder_ / "model" / "notes.txt") << "mine";
  const auto before = fs::last_write_time(folder_ / "model" / "model.safetensors");
  EXPECT_THAT(refusal({"--preset", "tiny"}), AllOf(HasSubstr("not empty"), HasSubstr("--overwrite")));
  EXPECT_EQ(fs::last_write_time(folder_ / "model" / "model.safetensors"), before);
  init({"--preset", "small", "--set", "num_hidden_layers=1", "--set", "vocab_size=64", "--overwrite"});
  EXPECT_TRUE(fs::exists(folder_ / "model" / "notes.txt"));
  EXPECT_FALSE(fs::exists(folder_ / "model" / "tokenizer.json"))
      << "it belonged to the model that was replaced";
}

}  // namespace
}  // namespace trireme
