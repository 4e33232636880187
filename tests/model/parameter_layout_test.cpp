#include "trireme/model/parameter_layout.h"

#include <map>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"

#include "tests/support/source_folder.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> parity_models() {
  std::vector<fs::path> all;
  for (const auto& item : fs::directory_iterator(testing::source_folder() / "tests/parity/fixtures"))
    if (item.is_directory()) all.push_back(item.path());
  return all;
}

TEST(ParameterLayout, names_and_shapes_are_exactly_those_of_transformers_files) {
  ASSERT_GE(parity_models().size(), 14U);
  for (const fs::path& dir : parity_models()) {
    const ModelConfig config = read_model_config(dir);
    const ModelLayout layout = make_model_layout(config);
    const SafetensorsSet weights(dir);
    std::map<std::string, std::vector<int64_t>> ours, theirs;
    int64_t elements = 0;
    for (const UnitSpec& unit : layout.units)
      for (const ParameterSpec& spec : unit.parameters) {
        ours[spec.name] = spec.shape;
        elements += spec.elements;
      }
    for (const std::string& name : weights.names()) theirs[name] = weights.at(name).shape;
    EXPECT_EQ(ours, theirs) << dir;
    EXPECT_EQ(config.parameter_count(), elements) << dir;
  }
}

TEST(ParameterLayout, parts_are_aligned_do_not_overlap_and_fill_the_unit) {
  for (const fs::path& dir : parity_models()) {
    const ModelLayout layout = make_model_layout(read_model_config(dir));
    for (const UnitSpec& unit : layout.units) {
      int64_t end = 0;
      for (const ParameterSpec& spec : unit.parameters) {
        bool inside_group = false;
        for (const char* part : {"k_proj", "v_proj", "up_proj", "self.key", "self.value"})
          inside_group = inside_group || spec.name.find(part) != std::string::npos;
        if (inside_group) {
          EXPECT_EQ(spec.offset, end) << spec.name;
        } else {
          EXPECT_EQ(spec.offset % 16, 0) << spec.name;
          EXPECT_LT(spec.offset - end, 16) << spec.name;
        }
        EXPECT_GE(spec.offset, end) << spec.name;
        EXPECT_EQ(spec.decays, spec.shape.size() == 2) << spec.name;
        end = spec.offset + spec.elements;
      }
      EXPECT_GE(unit.elements, end);
      EXPECT_EQ(unit.elements % 16, 0);
    }
  }
}

TEST(ParameterLayout, fused_views_hold_the_rows_of_their_parts_in_order) {
  for (const fs::path& dir : parity_models()) {
    const ModelConfig config = read_model_config(dir);
    if (config.family == ModelFamily::bert) continue;
    const ModelLayout layout = make_model_layout(config);
    const UnitSpec& unit = layout.units[static_cast<size_t>(layout.layer_unit(1))];
    const at::Tensor flat = at::arange(1, unit.elements + 1, at::kFloat);
    const LayerWeights tensors = layer_weights(flat, unit, config);
    const auto part = [&](const char* name) { return parameter_view(flat, unit.find(name)); };
    EXPECT_TRUE(
        tensors.qkv.equal(at::cat({part("q_proj.weight"), part("k_proj.weight"), part("v_proj.weight")})));
    EXPECT_TRUE(tensors.gate_up.equal(at::cat({part("gate_proj.weight"), part("up_proj.weight")})));
    EXPECT_EQ(tensors.qkv_bias.defined(), config.qkv_bias);
    if (config.qkv_bias) {
      EXPECT_TRUE(
          tensors.qkv_bias.equal(at::cat({part("q_proj.bias"), part("k_proj.bias"), part("v_proj.bias")})));
    }
    EXPECT_EQ(tensors.gate_up_bias.defined(), config.mlp_bias);
    if (config.mlp_bias) {
      EXPECT_TRUE(tensors.gate_up_bias.equal(at::cat({part("gate_proj.bias"), part("up_proj.bias")})));
    }
    EXPECT_EQ(tensors.q_norm.defined(), config.qk_norm);
    EXPECT_EQ(tensors.o_bias.defined(), config.output_bias);
    EXPECT_TRUE(tensors.o.equal(part("o_proj.weight")));
    EXPECT_TRUE(tensors.down.equal(part("down_proj.weight")));
    tensors.qkv.zero_();
    EXPECT_EQ(flat.eq(0).sum().item<int64_t>(), tensors.qkv.numel()) << "the views share the flat buffer";
  }
}

TEST(ParameterLayout, an_encoders_views_are_the_parts_of_their_names) {
  const ModelConfig config = read_model_config(testing::source_folder() / "tests/parity/fixtures/bert");
  const ModelLayout layout = make_model_layout(config);
  const UnitSpec& unit = layout.units[static_cast<size_t>(layout.layer_unit(1))];
  const at::Tensor flat = at::arange(1, unit.elements + 1, at::kFloat);
  const LayerWeights weights = layer_weights(flat, unit, config);
  const auto part = [&](const std::string& name) {
    return parameter_view(flat, unit.find("bert.encoder.layer.1." + name));
  };
  for (const auto& [fused, kind] : {std::pair(weights.qkv, "weight"), std::pair(weights.qkv_bias, "bias")})
    EXPECT_TRUE(fused.equal(at::cat({part(std::string("attention.self.query.") + kind),
                                     part(std::string("attention.self.key.") + kind),
                                     part(std::string("attention.self.value.") + kind)})));
  EXPECT_TRUE(weights.o.equal(part("attention.output.dense.weight")));
  EXPECT_TRUE(weights.o_bias.equal(part("attention.output.dense.bias")));
  EXPECT_TRUE(weights.attention_norm.equal(part("attention.output.LayerNorm.weight")));
  EXPECT_TRUE(weights.attention_norm_bias.equal(part("attention.output.LayerNorm.bias")));
  EXPECT_TRUE(weights.up.equal(part("intermediate.dense.weight")));
  EXPECT_TRUE(weights.up_bias.equal(part("intermediate.dense.bias")));
  EXPECT_TRUE(weights.down.equal(part("output.dense.weight")));
  EXPECT_TRUE(weights.down_bias.equal(part("output.dense.bias")));
  EXPECT_TRUE(weights.output_norm.equal(part("output.LayerNorm.weight")));
  EXPECT_TRUE(weights.output_norm_bias.equal(part("output.LayerNorm.bias")));
}

TEST(ParameterLayout, a_tied_head_holds_the_final_norm_only) {
  const ModelLayout tied =
      make_model_layout(parse_model_config({{"model_type", "llama"}, {"tie_word_embeddings", true}}, "t"));
  const ModelLayout untied = make_model_layout(parse_model_config({{"model_type", "llama"}}, "u"));
  EXPECT_EQ(tied.units[static_cast<size_t>(tied.head_unit())].parameters.size(), 1U);
  EXPECT_TRUE(untied.units[static_cast<size_t>(untied.head_unit())].has("lm_head.weight"));
  EXPECT_EQ(tied.units.size(), 34U);
}

TEST(ParameterLayout, a_part_is_found_by_whole_words_of_its_name) {
  const ModelLayout layout = make_model_layout(parse_model_config({{"model_type", "qwen3"}}, "q"));
  const UnitSpec& unit = layout.units[1];
  EXPECT_EQ(unit.find("q_norm.weight").name, "model.layers.0.self_attn.q_norm.weight");
  EXPECT_FALSE(unit.has("norm.weight")) << "q_norm and layernorm only end alike";
  EXPECT_THROW(unit.find("q_proj.bias"), InternalError);
  EXPECT_THROW(unit.find("weight"), InternalError) << "ambiguous";
}

}  // namespace
}  // namespace trireme
