// Ids equal those of the Hugging Face tokenizers library (fixtures/, by
// make_tokenizer_fixtures.py).
#include <filesystem>

#include <gtest/gtest.h>

#include "trireme/base/json.h"
#include "trireme/tokenizer/tokenizer.h"

#include "tests/support/source_folder.h"

namespace trireme {
namespace {

class TokenizerParity : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path fixture(const std::string& ending) const {
    return testing::source_folder() / "tests/tokenizer/fixtures" / (GetParam() + ending);
  }
  Json cases_ = read_json(fixture("_cases.json"));
  Tokenizer tokenizer_ = Tokenizer::load(fixture("_tokenizer.json"));
};

TEST_P(TokenizerParity, ids_equal_the_librarys) {
  ASSERT_GT(cases_.size(), 80);
  for (const Json& c : cases_) {
    EXPECT_EQ(tokenizer_.encode(c["text"].get<std::string>()), c["ids"].get<std::vector<int32_t>>())
        << c["text"];
  }
}

TEST_P(TokenizerParity, one_cache_for_many_texts_changes_nothing) {
  PieceCache cache;
  for (int round = 0; round < 2; ++round) {
    for (const Json& c : cases_) {
      EXPECT_EQ(tokenizer_.encode(c["text"].get<std::string>(), cache), c["ids"].get<std::vector<int32_t>>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerParity,
                         ::testing::Values("gpt2", "llama3", "qwen", "falcon", "flags", "llama2", "mistral",
                                           "gemma", "no_bytes", "bert", "bert_cased"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trireme
