#include "trireme/model/whole_model_writer.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/language_model.h"
#include "trireme/model/rope_override.h"

#include "tests/model/tensor_file.h"
#include "tests/support/error_message.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tensor_bytes.h"

namespace trireme {
namespace whole_model_writer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::message_of;
using testing::NamedTensors;
using testing::TemporaryFolder;
using testing::write_tensors;

fs::path fixture(const std::string& name) {
  return testing::source_folder() / "tests/parity/fixtures" / name;
}

class WholeModelWriter : public ::testing::TestWithParam<std::string> {
 protected:
  static std::function<at::Tensor(int)> doubled(const ModelLayout& layout, const CheckpointReader& reader) {
    return [&layout, &reader](int unit) {
      const UnitSpec& spec = layout.units[static_cast<size_t>(unit)];
      at::Tensor flat = at::zeros({spec.elements}, at::kFloat);
      reader.read_unit(spec, flat);
      return flat.mul_(2);
    };
  }

  TemporaryFolder out_;
};

TEST_P(WholeModelWriter, the_language_model_is_replaced_and_every_other_tensor_is_as_it_was) {
  const fs::path whole = fixture(GetParam());
  const ModelConfig config = read_model_config(whole);
  const ModelLayout layout = make_model_layout(config);
  EXPECT_EQ(check_whole_model(whole, config), config.whole_type);
  const CheckpointReader before(whole);
  write_whole_model(out_.path(), whole, config, layout, doubled(layout, before));

  EXPECT_EQ(read_json(out_ / "config.json"), read_json(whole / "config.json"));
  const CheckpointReader after(out_.path());
  for (const UnitSpec& unit : layout.units) {
    at::Tensor was = at::empty({unit.elements}, at::kFloat), is = at::empty({unit.elements}, at::kFloat);
    before.read_unit(unit, was);
    after.read_unit(unit, is);
    EXPECT_TRUE(is.equal(was * 2)) << unit.name;
  }
  const SafetensorsSet all_before(whole), all_after(out_.path());
  ASSERT_EQ(all_after.names(), all_before.names());
  int of_images = 0;
  for (const std::string& name : all_before.names())
    for (const std::string& part : image_tensor_names())
      if (name.find(part) != std::string::npos) {
        ++of_images;
        EXPECT_EQ(bytes_of(all_after.at(name)), bytes_of(all_before.at(name))) << name;
      }
  EXPECT_GT(of_images, 5);
}
INSTANTIATE_TEST_SUITE_P(Fixtures, WholeModelWriter,
                         ::testing::Values("gemma3_whole", "gemma4_whole", "gemma4_unified", "mistral3_whole",
                                           "mistral3_ministral3", "qwen2_5_vl", "qwen3_vl", "qwen3_5_whole",
                                           "qwen3_5_moe_whole"));

class WholeModelFolder : public WholeModelWriter {};
INSTANTIATE_TEST_SUITE_P(Gemma3, WholeModelFolder, ::testing::Values("gemma3_whole"));

TEST_P(WholeModelFolder, files_dtypes_tokenizer_and_what_prepares_images_stay_and_positions_are_the_runs) {
  const ModelConfig config = read_model_config(fixture(GetParam()));
  const ModelLayout layout = make_model_layout(config);
  const CheckpointReader before(fixture(GetParam()));
  // As published: in shards, with files beside that are no part of it.
  const TemporaryFolder sharded;
  const SafetensorsSet tensors(fixture(GetParam()));
  Json index = {{"weight_map", Json::object()}};
  std::map<std::string, NamedTensors> files;
  for (const std::string& name : tensors.names()) {
    const std::string file = name.find("layers.1") == std::string::npos ? "a.safetensors" : "b.safetensors";
    index["weight_map"][name] = file;
    files[file].emplace_back(name, at::ones(tensors.at(name).shape, at::kBFloat16));
  }
  // A head that repeats the embedding, as in files that were pickles once.
  files["b.safetensors"].emplace_back("language_model.lm_head.weight",
                                      at::ones({config.vocab_size, config.hidden_size}, at::kBFloat16));
  index["weight_map"]["language_model.lm_head.weight"] = "b.safetensors";
  for (const auto& [file, named] : files) write_tensors(sharded / file, named);
  replace_file(sharded / "model.safetensors.index.json", index.dump());
  replace_file(sharded / "config.json", read_json(fixture(GetParam()) / "config.json").dump());
  for (const char* name : {"tokenizer.json", "preprocessor_config.json", "chat_template.jinja",
                           "tokenizer.model", "additional_chat_templates/tool_use.jinja"})
    sharded.write(name, name);
  sharded.write("tokenizer_config.json", R"({"model_max_length": 9})");
  const auto others = {"consolidated.safetensors", "model.gguf", "adapter_config.json",
                       "pytorch_model.bin.index.json"};
  for (const char* name : others) replace_file(sharded / name, "other weights");

  const ModelConfig stretched = with_rope(config, {.scaling = "linear:16", .theta = {}});
  write_whole_model(out_.path(), sharded.path(), stretched, layout, doubled(layout, before));
  for (const char* name :
       {"tokenizer.json", "preprocessor_config.json", "chat_template.jinja", "tokenizer.model",
        "additional_chat_templates/tool_use.jinja", "a.safetensors", "b.safetensors"})
    EXPECT_TRUE(fs::exists(out_ / name)) << name;
  for (const char* name : others) EXPECT_FALSE(fs::exists(out_ / name)) << name;
  EXPECT_FALSE(fs::exists(out_ / "model.safetensors"));
  const ModelConfig written = read_model_config(out_.path());
  EXPECT_EQ(written.max_position_embeddings, stretched.max_position_embeddings);
  EXPECT_EQ(written.rope.factor, 16);
  EXPECT_EQ(read_json(out_ / "tokenizer_config.json"),
            (Json{{"model_max_length", position_reach(stretched)}}));
  const SafetensorsSet tensors_after(out_.path());
  EXPECT_EQ(tensors_after.at("vision_tower.embeddings.patch_embedding.weight").dtype, "BF16");
  EXPECT_EQ(bytes_of(tensors_after.at("language_model.lm_head.weight")),
            bytes_of(tensors_after.at("language_model.model.embed_tokens.weight")));
  const CheckpointReader after(out_.path());
  for (const UnitSpec& unit : layout.units) {
    at::Tensor is = at::empty({unit.elements}, at::kFloat);
    after.read_unit(unit, is);
    at::Tensor expected = doubled(layout, before)(static_cast<int>(&unit - layout.units.data()));
    EXPECT_TRUE(is.equal(expected.to(at::kBFloat16).to(at::kFloat))) << unit.name;
  }
}

TEST_P(WholeModelFolder, another_model_than_the_runs_is_refused) {
  const ModelConfig config = read_model_config(fixture(GetParam()));
  EXPECT_THAT(message_of<ConfigError>([&] { check_whole_model(fixture("gemma3"), config); }),
              HasSubstr("no language model inside"));
  EXPECT_THAT(
      message_of<ConfigError>([&] { check_whole_model(fixture("qwen3_vl"), config); }),
      AllOf(HasSubstr("the language model inside has"), HasSubstr("qwen3"), HasSubstr("gemma3_text")));
  // The same names and shapes with another arithmetic.
  ModelConfig llama = read_model_config(fixture("mistral3_ministral3"));
  llama.raw["model_type"] = "llama";
  EXPECT_THAT(message_of<ConfigError>([&] { check_whole_model(fixture("mistral3_ministral3"), llama); }),
              AllOf(HasSubstr("model_type"), HasSubstr("llama")));
}

// The file that is read is the one that is written: an index beside it may be of another model.
TEST_P(WholeModelFolder, an_index_beside_a_single_file_is_not_followed) {
  const TemporaryFolder both;
  for (const char* name : {"config.json", "model.safetensors"})
    copy_durable(fixture(GetParam()) / name, both / name);
  replace_file(both / "model.safetensors.index.json",
               R"({"weight_map": {"lm_head.weight": "model-00001.safetensors"}})");
  const ModelConfig config = read_model_config(both.path());
  EXPECT_TRUE(config.tie_word_embeddings);
  check_whole_model(both.path(), config);
  const ModelLayout layout = make_model_layout(config);
  const CheckpointReader reader(both.path());
  write_whole_model(out_.path(), both.path(), config, layout, doubled(layout, reader));
  EXPECT_EQ(SafetensorsSet(out_.path()).names(), SafetensorsSet(both.path()).names());
  EXPECT_FALSE(fs::exists(out_ / "model.safetensors.index.json"));
}

TEST_P(WholeModelFolder, a_tensor_under_two_names_and_a_value_beyond_its_dtype_are_refused) {
  const ModelConfig config = read_model_config(fixture(GetParam()));
  const ModelLayout layout = make_model_layout(config);
  const SafetensorsSet tensors(fixture(GetParam()));
  const auto write = [&](const fs::path& dir, at::ScalarType type, const std::string& more) {
    NamedTensors named;
    for (const std::string& name : tensors.names())
      named.emplace_back(name, at::ones(tensors.at(name).shape, type));
    if (!more.empty()) named.emplace_back(more, at::ones({2000}, type));
    write_tensors(dir / "model.safetensors", named);
    copy_durable(fixture(GetParam()) / "config.json", dir / "config.json");
  };
  const TemporaryFolder twice, half;
  write(twice.path(), at::kFloat, "model.language_model.norm.weight");
  EXPECT_THAT(message_of<DataError>([&] { check_whole_model(twice.path(), config); }),
              HasSubstr("norm.weight"));
  write(half.path(), at::kHalf, "");
  EXPECT_THAT(message_of<ConfigError>([&] {
                write_whole_model(out_.path(), half.path(), config, layout, [&](int unit) {
                  return at::full({layout.units[static_cast<size_t>(unit)].elements}, 1e6, at::kFloat);
                });
              }),
              AllOf(HasSubstr("1e+06"), HasSubstr("F16"), HasSubstr("by itself")));
}

}  // namespace
}  // namespace whole_model_writer_test
}  // namespace trireme
