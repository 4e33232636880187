// tokenizer_config.json beside a model with more positions than the one that it was made for.
#include "trireme/model/tokenizer_length.h"

#include <gtest/gtest.h>

#include "trireme/base/json.h"
#include "trireme/model/rope_override.h"

#include "tests/support/file_bytes.h"
#include "tests/support/temporary_folder.h"

namespace trireme::tokenizer_length_test {
namespace {

using testing::bytes_of;
using testing::TemporaryFolder;

class TokenizerLength : public ::testing::Test {
 protected:
  TokenizerLength() {
    const Json model = {{"model_type", "llama"},
                        {"hidden_size", 256},
                        {"num_attention_heads", 4},
                        {"max_position_embeddings", 8192},
                        {"rope_theta", 500000.0}};
    folder_.write("from/config.json", model.dump());
    stretch("yarn:4");
  }

  void stretch(const std::string& scaling) const {
    const ModelConfig model = parse_model_config(read_json(folder_ / "from/config.json"), "from");
    folder_.write("to/config.json", with_rope(model, {.scaling = scaling, .theta = {}}).raw.dump());
  }

  // What becomes of a tokenizer_config.json.
  std::string lengthened(const std::string& text) const {
    folder_.write("to/tokenizer_config.json", text);
    lengthen_tokenizer(folder_ / "from", folder_ / "to");
    return bytes_of(folder_ / "to/tokenizer_config.json");
  }

  TemporaryFolder folder_;
};

TEST_F(TokenizerLength, grows_to_the_positions_and_every_other_byte_stays) {
  EXPECT_EQ(
      lengthened(
          "{\"a\": \"\\u00e9 \xc3\xa9\",\n\t\"model_max_length\" :8192 ,\"pad\": 1e30, \"b\": [{}]}\n\n"),
      "{\"a\": \"\\u00e9 \xc3\xa9\",\n\t\"model_max_length\" :32768 ,\"pad\": 1e30, \"b\": [{}]}\n\n");
  EXPECT_EQ(lengthened(R"({"model_max_length":8192})"), R"({"model_max_length":32768})");
  EXPECT_EQ(lengthened(R"({"model_max_length": 4096.0})"), R"({"model_max_length": 32768})");
}

TEST_F(TokenizerLength, reaches_what_a_dynamic_scaling_does_though_config_json_names_the_first_length) {
  stretch("dynamic:2");
  EXPECT_EQ(lengthened(R"({"model_max_length": 8192})"), R"({"model_max_length": 16384})");
}

TEST_F(TokenizerLength, is_the_outermost_key_alone) {
  for (const char* text : {R"({"chat_template": "\"model_max_length\": 8192", "b": "model_max_length"})",
                           R"({"init": {"model_max_length": 8192}, "l": ["model_max_length", 8192]})",
                           R"({"not_model_max_length": 8192})"})
    EXPECT_EQ(lengthened(text), text);
  EXPECT_EQ(lengthened(R"({"t": "\\", "i": {"model_max_length": 1}, "model_max_length": 2})"),
            R"({"t": "\\", "i": {"model_max_length": 1}, "model_max_length": 32768})");
}

TEST_F(TokenizerLength, that_cuts_nothing_or_is_no_number_stays) {
  for (const char* text :
       {R"({"model_max_length": 1000000000000000019884624838656})", R"({"model_max_length": 1e30})",
        R"({"model_max_length": 32768})", R"({"model_max_length": 40000})", R"({"model_max_length": null})",
        R"({"model_max_length": "8192"})", R"({"model_max_length": -1})", R"({"model_max_length")", "{}", ""})
    EXPECT_EQ(lengthened(text), text);
}

TEST_F(TokenizerLength, of_a_model_that_reaches_no_further_stays) {
  const std::string shorter = R"({"model_max_length": 512})";
  stretch("default");
  EXPECT_EQ(lengthened(shorter), shorter);
  stretch("yarn:4");
  folder_.write("from/config.json", "damaged");
  EXPECT_EQ(lengthened(shorter), shorter);
  std::filesystem::remove(folder_ / "from/config.json");
  EXPECT_EQ(lengthened(shorter), shorter);
}

TEST_F(TokenizerLength, of_a_folder_without_the_file_is_nothing) {
  lengthen_tokenizer(folder_ / "from", folder_ / "to");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "to/tokenizer_config.json"));
}

}  // namespace
}  // namespace trireme::tokenizer_length_test
