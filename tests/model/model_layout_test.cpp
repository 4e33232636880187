#include "trireme/model/model_layout.h"

#include <map>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/unit_weights.h"

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

using Shapes = std::map<std::string, std::vector<int64_t>>;

// Of a model that reads images too, under the names that its language model has by itself.
Shapes of_language_model(const Shapes& whole) {
  Shapes text;
  for (const auto& [name, shape] : whole) {
    if (name.find("vis") != std::string::npos || name.find("projector") != std::string::npos) continue;
    for (const std::string prefix : {"model.language_model.", "language_model.model.", "language_model.", ""})
      if (name.starts_with(prefix)) {
        const bool of_head = prefix.empty() || prefix == "language_model.";
        text[(of_head ? "" : "model.") + name.substr(prefix.size())] = shape;
        break;
      }
  }
  return text;
}

TEST(ModelLayout, names_and_shapes_are_exactly_those_of_transformers_files) {
  ASSERT_GE(parity_models().size(), 14U);
  for (const fs::path& dir : parity_models()) {
    const ModelConfig config = read_model_config(dir);
    const ModelLayout layout = make_model_layout(config);
    const SafetensorsSet weights(dir);
    const CheckpointReader reader(dir);
    Shapes ours, theirs;
    int64_t elements = 0;
    for (const UnitSpec& unit : layout.units)
      for (const ParameterSpec* spec : reader.held_parameters(unit)) {
        ours[spec->name] = spec->shape;
        elements += spec->elements;
      }
    for (const std::string& name : weights.names()) theirs[name] = weights.at(name).shape;
    if (!config.whole_type.empty()) theirs = of_language_model(theirs);
    EXPECT_EQ(ours, theirs) << dir;
    EXPECT_EQ(layout.parameter_count(), elements) << dir;
  }
}

TEST(ModelLayout, parts_are_aligned_do_not_overlap_and_fill_the_unit) {
  for (const fs::path& dir : parity_models()) {
    const ModelLayout layout = make_model_layout(read_model_config(dir));
    for (const UnitSpec& unit : layout.units) {
      int64_t end = 0;
      for (const ParameterSpec& spec : unit.parameters) {
        bool inside_group = false;
        for (const char* part : {"k_proj", "v_proj", ".up_proj", "self.key", "self.value"})
          inside_group = inside_group || spec.name.find(part) != std::string::npos;
        if (inside_group) {
          EXPECT_EQ(spec.offset, end) << spec.name;
        } else {
          EXPECT_EQ(spec.offset % 16, 0) << spec.name;
          EXPECT_LT(spec.offset - end, 16) << spec.name;
        }
        EXPECT_GE(spec.offset, end) << spec.name;
        EXPECT_EQ(spec.decays, spec.shape.size() > 1) << spec.name;
        end = spec.offset + spec.elements;
      }
      EXPECT_GE(unit.elements, end);
      EXPECT_EQ(unit.elements % 16, 0);
    }
  }
}

// The arithmetic is held to names by encoder_layer_test.cpp and fp16_layer_test.cpp; here, that each view is
// a run of whole parameters.
TEST(ModelLayout, bound_tensors_are_the_rows_of_their_parameters_in_order_and_leave_none_out) {
  for (const fs::path& dir : parity_models())
    for (const UnitSpec& unit : make_model_layout(read_model_config(dir)).units) {
      const at::Tensor flat = at::arange(1, unit.elements + 1, at::kFloat);
      const std::vector<at::Tensor> weights = bind_weights(flat, unit);
      int64_t elements = 0, parameters = 0;
      for (const at::Tensor& tensor : weights) {
        if (!tensor.defined()) continue;
        elements += tensor.numel();
        std::vector<at::Tensor> parts;
        for (const ParameterSpec& spec : unit.parameters) {
          const at::Tensor whole = parameter_view(flat, spec);
          // A filter's taps; experts' matrices.
          const at::Tensor part = whole.dim() > 2 ? whole.reshape({-1, whole.size(-1)}) : whole;
          const auto first = tensor.flatten()[0].item<float>(), begin = part.flatten()[0].item<float>();
          if (begin >= first && begin < first + static_cast<float>(tensor.numel())) parts.push_back(part);
        }
        parameters += static_cast<int64_t>(parts.size());
        EXPECT_TRUE(tensor.equal(at::cat(parts))) << unit.name;
      }
      EXPECT_EQ(parameters, unit.parameters.size()) << unit.name;
      for (const at::Tensor& tensor : weights)
        if (tensor.defined()) tensor.zero_();
      EXPECT_EQ(flat.eq(0).sum().item<int64_t>(), elements) << "the views share the flat buffer";
    }
}

TEST(ModelLayout, a_tied_head_holds_the_final_norm_only) {
  const ModelLayout tied =
      make_model_layout(parse_model_config({{"model_type", "llama"}, {"tie_word_embeddings", true}}, "t"));
  const ModelLayout untied = make_model_layout(parse_model_config({{"model_type", "llama"}}, "u"));
  EXPECT_EQ(tied.units[static_cast<size_t>(tied.head_unit())].parameters.size(), 1U);
  EXPECT_EQ(untied.units[static_cast<size_t>(untied.head_unit())].parameters.back().name, "lm_head.weight");
  EXPECT_EQ(tied.units.size(), 34U);
}

TEST(ModelLayout, a_slot_is_filled_once) {
  UnitBuilder build("unit", "", 2);
  build.vector(1, {{"a", 4}});
  EXPECT_THROW(build.matrix(1, {{"b", 4}}, 2), InternalError);
}

}  // namespace
}  // namespace trireme
