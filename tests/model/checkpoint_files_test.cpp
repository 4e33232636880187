#include "trireme/model/checkpoint_files.h"

#include <map>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/initial_values.h"
#include "trireme/model/unit_weights.h"

#include "tests/model/tensor_file.h"
#include "tests/support/error_message.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tensor_bytes.h"
#include "tests/support/unit_parameters.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::NamedTensors;
using testing::TemporaryFolder;
using testing::write_tensors;

class CheckpointFiles : public ::testing::Test {
 protected:
  static ModelConfig tiny(bool tied = false) {
    return parse_model_config({{"model_type", "qwen2"},
                               {"hidden_size", 24},
                               {"intermediate_size", 40},
                               {"num_hidden_layers", 2},
                               {"num_attention_heads", 4},
                               {"num_key_value_heads", 2},
                               {"vocab_size", 50},
                               {"max_position_embeddings", 128},
                               {"tie_word_embeddings", tied}},
                              "tiny");
  }
  void write(const fs::path& dir, const ModelConfig& config, at::ScalarType dtype = at::kFloat,
             int64_t shard_bytes = int64_t{5} << 30, uint64_t seed = 1) const {
    const ModelLayout layout = make_model_layout(config);
    write_checkpoint(
        dir, config, layout,
        [&](int unit) { return initial_unit_values(layout.units[static_cast<size_t>(unit)], config, seed); },
        dtype, {}, shard_bytes);
  }
  static void read_all(const fs::path& dir, const ModelConfig& config) {
    const CheckpointReader reader(dir);
    for (const UnitSpec& unit : make_model_layout(config).units) {
      at::Tensor flat = at::empty({unit.elements}, at::kFloat);
      reader.read_unit(unit, flat);
    }
  }
  // The model's own tensors, one of them left out or given another shape.
  void write_but(const ModelConfig& config, const std::string& name,
                 const std::vector<int64_t>& other_shape) const {
    NamedTensors tensors;
    for (const UnitSpec& unit : make_model_layout(config).units)
      for (const ParameterSpec& spec : unit.parameters)
        if (spec.name != name || !other_shape.empty())
          tensors.emplace_back(spec.name, at::zeros(spec.name == name ? other_shape : spec.shape));
    write_tensors(folder_ / "model.safetensors", tensors);
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointFiles, what_is_written_is_read_back_in_one_file_or_in_shards) {
  const ModelConfig config = tiny();
  const ModelLayout layout = make_model_layout(config);
  for (const int64_t shard_bytes : {int64_t{1} << 30, int64_t{6000}, int64_t{1}}) {
    const fs::path model = folder_ / cat(shard_bytes);
    write(model, config, at::kFloat, shard_bytes);
    EXPECT_EQ(fs::exists(model / "model.safetensors"), shard_bytes == int64_t{1} << 30);
    EXPECT_EQ(fs::exists(model / "model.safetensors.index.json"), shard_bytes != int64_t{1} << 30);
    EXPECT_EQ(read_model_config(model).hidden_size, 24);
    EXPECT_EQ(read_json(model / "config.json")["torch_dtype"], "float32");
    const CheckpointReader reader(model);
    for (const UnitSpec& unit : layout.units) {
      at::Tensor flat = at::full({unit.elements}, 99, at::kFloat);
      reader.read_unit(unit, flat);
      EXPECT_TRUE(flat.equal(initial_unit_values(unit, config, 1))) << unit.name << ", padding included";
    }
    EXPECT_TRUE(reader.unused_names(layout).empty());
  }
}

TEST_F(CheckpointFiles, low_precision_is_rounded_once_and_converted_when_read) {
  const ModelConfig config = tiny();
  const UnitSpec unit = make_model_layout(config).units[1];
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    write(folder_.path(), config, dtype);
    const CheckpointReader reader(folder_.path());
    const at::Tensor values = initial_unit_values(unit, config, 1);
    at::Tensor wide = at::empty({unit.elements}, at::kFloat);
    reader.read_unit(unit, wide);
    EXPECT_TRUE(wide.equal(values.to(dtype).to(at::kFloat)));
    at::Tensor same = at::empty({unit.elements}, dtype);
    reader.read_unit(unit, same);
    EXPECT_TRUE(same.equal(values.to(dtype)));
  }
}

TEST_F(CheckpointFiles, references_of_transformers_are_read) {
  const fs::path dir = testing::source_folder() / "tests/parity/fixtures/llama_biases";
  read_all(dir, read_model_config(dir));
  const SafetensorsFile file(dir / "model.safetensors");
  const UnitSpec unit = make_model_layout(read_model_config(dir)).units[1];
  at::Tensor flat = at::empty({unit.elements}, at::kFloat);
  CheckpointReader(dir).read_unit(unit, flat);
  const SafetensorsEntry& entry = file.at("model.layers.0.self_attn.v_proj.bias");
  const at::Tensor values = parameter_view(flat, testing::parameter_of(unit, "v_proj.bias"));
  EXPECT_EQ(
      std::memcmp(values.const_data_ptr(), testing::bytes_of(entry).data(), static_cast<size_t>(entry.bytes)),
      0);
}

TEST_F(CheckpointFiles, a_missing_or_misshaped_tensor_is_named) {
  const ModelConfig config = tiny();
  write_but(config, "model.layers.1.mlp.up_proj.weight", {});
  EXPECT_THAT(message_of<DataError>([&] { read_all(folder_.path(), config); }),
              HasSubstr("'model.layers.1.mlp.up_proj.weight' is missing"));
  write_but(config, "model.layers.0.self_attn.k_proj.bias", {13});
  EXPECT_THAT(message_of<DataError>([&] { read_all(folder_.path(), config); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("k_proj.bias' (F32 [13])"), HasSubstr("[12]")));
  write_but(config, "lm_head.weight", {});
  EXPECT_THAT(message_of<DataError>([&] { read_all(folder_.path(), config); }),
              AllOf(HasSubstr("lm_head.weight"), HasSubstr("tie_word_embeddings true")));
}

TEST_F(CheckpointFiles, a_truncated_or_missing_shard_is_named) {
  const ModelConfig config = tiny();
  write(folder_.path(), config, at::kFloat, 6000);
  std::vector<fs::path> shards;
  for (const auto& item : fs::directory_iterator(folder_.path()))
    if (item.path().extension() == ".safetensors") shards.push_back(item.path());
  ASSERT_GT(shards.size(), 2U);
  const fs::path last = *std::max_element(shards.begin(), shards.end());
  fs::resize_file(last, fs::file_size(last) - 5);
  EXPECT_THAT(message_of<DataError>([&] { read_all(folder_.path(), config); }),
              AllOf(HasSubstr(last.filename()), HasSubstr("interrupted download")));
  fs::remove(last);
  EXPECT_THAT(message_of<DataError>([&] { read_all(folder_.path(), config); }),
              AllOf(HasSubstr(last.filename()), HasSubstr("shard is missing")));
}

TEST_F(CheckpointFiles, integer_weights_are_refused) {
  const ModelConfig config = tiny();
  write_tensors(folder_ / "model.safetensors",
                {{"model.embed_tokens.weight", at::zeros({50, 24}, at::kChar)}});
  EXPECT_THAT(message_of<DataError>([&] { read_all(folder_.path(), config); }),
              HasSubstr("quantized weights cannot be trained"));
}

TEST_F(CheckpointFiles, tensors_that_no_unit_uses_are_listed_but_not_rotary_buffers) {
  const ModelConfig config = tiny(true);
  const ModelLayout layout = make_model_layout(config);
  NamedTensors tensors;
  for (const UnitSpec& unit : layout.units)
    for (const ParameterSpec& spec : unit.parameters) tensors.emplace_back(spec.name, at::zeros(spec.shape));
  tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", at::zeros({3}));
  tensors.emplace_back("score.weight", at::zeros({2}));
  tensors.emplace_back("lm_head.weight", at::zeros({50, 24}));
  write_tensors(folder_ / "model.safetensors", tensors);
  EXPECT_THAT(CheckpointReader(folder_.path()).unused_names(layout), ElementsAre("score.weight"));
  const ParameterSpec& words = layout.units[0].parameters[0];
  const CheckpointReader reader(folder_.path());
  ASSERT_NE(reader.second_stored(words, layout), nullptr);
  EXPECT_EQ(reader.second_stored(words, layout)->name, "lm_head.weight");
  EXPECT_EQ(reader.second_stored(layout.units[1].parameters[0], layout), nullptr);
  tensors.back().second = at::zeros({24, 50});
  write_tensors(folder_ / "model.safetensors", tensors);
  EXPECT_THAT(message_of<DataError>([&] { CheckpointReader(folder_.path()).second_stored(words, layout); }),
              HasSubstr("differs from 'model.embed_tokens.weight'"));
}

// As transformers 5 holds experts, and as Qwen3.5's are published.
TEST_F(CheckpointFiles, experts_that_lie_in_one_tensor_are_read_like_those_that_lie_apart) {
  const fs::path dir = testing::source_folder() / "tests/parity/fixtures/qwen3_5_moe";
  const ModelConfig config = read_model_config(dir);
  const ModelLayout layout = make_model_layout(config);
  const CheckpointReader apart(dir);
  const auto read = [&](const CheckpointReader& reader, const UnitSpec& unit) {
    at::Tensor flat = at::full({unit.elements}, 99, at::kFloat);
    reader.read_unit(unit, flat);
    return flat;
  };
  const auto write_joined = [&](size_t layers, const std::vector<int64_t>& changed_shape = {},
                                bool both = false) {
    NamedTensors tensors;
    for (size_t u = 0; u < layout.units.size(); ++u) {
      const UnitSpec& unit = layout.units[u];
      const at::Tensor flat = read(apart, unit);
      const bool joined = u > 0 && u <= layers;
      const auto add = [&](const ParameterSpec& spec) {
        tensors.emplace_back(spec.name, parameter_view(flat, spec));
      };
      for (const ParameterSpec& spec : unit.parameters)
        if (!joined || both || spec.name.find(".experts.") == std::string::npos) add(spec);
      for (const ParameterSpec& spec : unit.joined)
        if (joined) add(spec);
      if (joined && !changed_shape.empty())
        tensors.back().second = tensors.back().second.reshape(changed_shape);
    }
    write_tensors(folder_ / "model.safetensors", tensors);
  };
  for (const size_t layers : {1, 2}) {
    write_joined(layers);
    const CheckpointReader reader(folder_.path());
    EXPECT_EQ(reader.held_parameters(layout.units[1]).size() + 3 * 4 - 2, layout.units[1].parameters.size());
    for (const UnitSpec& unit : layout.units)
      EXPECT_TRUE(read(reader, unit).equal(read(apart, unit))) << unit.name << ", " << layers;
    EXPECT_TRUE(reader.unused_names(layout).empty());
  }
  write_joined(1, {}, /*both=*/true);
  EXPECT_THAT(
      message_of<DataError>([&] { CheckpointReader(folder_.path()).unused_names(layout); }),
      AllOf(HasSubstr("experts.0.gate_proj"), HasSubstr("are also in"), HasSubstr("experts.gate_up_proj")));
  write_joined(1, {4, 8, 32});
  EXPECT_THAT(message_of<DataError>([&] { read(CheckpointReader(folder_.path()), layout.units[1]); }),
              AllOf(HasSubstr("experts.down_proj"), HasSubstr("[4, 32, 8]")));
}

// BERT's checkpoints as they are found: the first ones' names of norms, a next-sentence head, second names of
// the tied.
class EncoderFiles : public CheckpointFiles {
 protected:
  static ModelConfig tiny_bert() {
    return parse_model_config({{"model_type", "bert"},
                               {"hidden_size", 24},
                               {"intermediate_size", 40},
                               {"num_hidden_layers", 2},
                               {"num_attention_heads", 4},
                               {"vocab_size", 50},
                               {"max_position_embeddings", 32},
                               {"hidden_dropout_prob", 0.0},
                               {"attention_probs_dropout_prob", 0.0}},
                              "tiny bert");
  }
  using Named = std::map<std::string, at::Tensor>;
  static Named values() {
    Named named;
    for (const UnitSpec& unit : make_model_layout(tiny_bert()).units) {
      const at::Tensor flat = at::randn({unit.elements});
      for (const ParameterSpec& spec : unit.parameters) named[spec.name] = parameter_view(flat, spec).clone();
    }
    return named;
  }
  void write(const Named& named) const {
    write_tensors(folder_ / "model.safetensors", NamedTensors(named.begin(), named.end()));
  }
  void expect_read(const Named& expected) const {
    const ModelLayout layout = make_model_layout(tiny_bert());
    const CheckpointReader reader(folder_.path());
    for (const UnitSpec& unit : layout.units) {
      at::Tensor flat = at::empty({unit.elements}, at::kFloat);
      reader.read_unit(unit, flat);
      for (const ParameterSpec& spec : unit.parameters)
        EXPECT_TRUE(parameter_view(flat, spec).equal(expected.at(spec.name))) << spec.name;
    }
    EXPECT_TRUE(reader.unused_names(layout).empty());
  }
};

TEST_F(EncoderFiles, older_names_second_names_and_the_next_sentence_head_are_understood) {
  const Named today = values();
  Named found;
  for (const auto& [name, tensor] : today) {
    std::string older = name;
    for (const auto& [from, to] :
         {std::pair("LayerNorm.weight", "LayerNorm.gamma"), std::pair("LayerNorm.bias", "LayerNorm.beta")})
      if (const size_t at = older.find(from); at != std::string::npos)
        older.replace(at, std::string::npos, to);
    found[older] = tensor;
  }
  found["bert.pooler.dense.weight"] = at::ones({24, 24});
  found["cls.seq_relationship.weight"] = at::ones({2, 24});
  found["bert.embeddings.position_ids"] = at::ones({1, 32});
  found["cls.predictions.decoder.weight"] = today.at("bert.embeddings.word_embeddings.weight");
  found["cls.predictions.decoder.bias"] = today.at("cls.predictions.bias");
  write(found);
  expect_read(today);
  found.erase("cls.predictions.bias");
  write(found);
  expect_read(today);
}

TEST_F(EncoderFiles, what_is_missing_or_not_tied_is_named) {
  Named found = values();
  found["cls.predictions.decoder.bias"] = at::zeros({49});
  write(found);
  const ModelLayout layout = make_model_layout(tiny_bert());
  EXPECT_THAT(message_of<DataError>([&] {
                CheckpointReader(folder_.path())
                    .second_stored(testing::parameter_of(layout.units.back(), "predictions.bias"), layout);
              }),
              AllOf(HasSubstr("cls.predictions.decoder.bias"), HasSubstr("'cls.predictions.bias'")));

  Named headless, bare;
  for (const auto& [name, tensor] : values()) {
    if (name.rfind("bert.", 0) != 0) continue;
    headless[name] = tensor;
    bare[name.substr(5)] = tensor;
  }
  write(headless);
  EXPECT_THAT(message_of<DataError>([&] { read_all(folder_.path(), tiny_bert()); }),
              HasSubstr("no head for the masked-token loss"));
  write(bare);
  EXPECT_THAT(message_of<DataError>([&] { read_all(folder_.path(), tiny_bert()); }),
              AllOf(HasSubstr("saved without its head"), HasSubstr("masked language model")));
}

TEST_F(CheckpointFiles, fresh_weights_depend_on_seed_and_name_alone) {
  const ModelConfig config = tiny();
  const ModelLayout layout = make_model_layout(config);
  const at::Tensor first = initial_unit_values(layout.units[1], config, 7);
  EXPECT_TRUE(first.equal(initial_unit_values(layout.units[1], config, 7)));
  EXPECT_FALSE(first.equal(initial_unit_values(layout.units[1], config, 8)));
  EXPECT_FALSE(first.equal(initial_unit_values(layout.units[2], config, 7))) << "layers must not start equal";
  UnitSpec alone;
  alone.parameters = {testing::parameter_of(layout.units[1], "down_proj.weight")};
  alone.parameters[0].offset = 0;
  alone.elements = alone.parameters[0].elements;
  EXPECT_TRUE(
      initial_unit_values(alone, config, 7)
          .equal(
              parameter_view(first, testing::parameter_of(layout.units[1], "down_proj.weight")).flatten()));
}

TEST_F(CheckpointFiles, fresh_weights_are_normal_norms_one_and_biases_zero) {
  const ModelConfig config = tiny();
  const ModelLayout layout = make_model_layout(config);
  const at::Tensor flat = initial_unit_values(layout.units[1], config, 3);
  const auto part = [&](const char* name) {
    return parameter_view(flat, testing::parameter_of(layout.units[1], name));
  };
  EXPECT_TRUE(part("input_layernorm.weight").eq(1).all().item<bool>());
  EXPECT_TRUE(part("q_proj.bias").eq(0).all().item<bool>());
  const at::Tensor up = part("up_proj.weight");
  EXPECT_NEAR(up.std().item<double>(), 0.02, 0.002);
  EXPECT_NEAR(up.mean().item<double>(), 0, 0.003);
}

}  // namespace
}  // namespace trireme
