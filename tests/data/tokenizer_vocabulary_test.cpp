// Tokens of a tokenizer.json for which a model has no rows.
#include "trireme/data/tokenizer_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/json.h"

#include "tests/support/temporary_folder.h"

namespace trireme::tokenizer_vocabulary_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

TEST(TokensWithoutRows, are_told_with_their_number_the_first_and_what_may_have_been_forgotten) {
  const TemporaryFolder model;
  const Json json = {
      {"model", {{"vocab", {{"a", 0}, {"b", 1}, {"c", 2}}}}},
      {"added_tokens", {{{"id", 3}, {"content", "<tool>"}}, {{"id", 5}, {"content", "</tool>"}}}}};
  const auto file = model.write("tokenizer.json", json.dump());
  EXPECT_EQ(tell_tokens_without_rows(model.path(), 6), "") << "ids up to 5";
  EXPECT_THAT(tell_tokens_without_rows(model.path(), 5),
              AllOf(HasSubstr(file.string() + " has 1 token beyond the model's vocabulary of 5 ids"),
                    HasSubstr("the first is 5, \"</tool>\"")));
  EXPECT_THAT(tell_tokens_without_rows(model.path(), 3),
              AllOf(HasSubstr("has 2 tokens beyond"), HasSubstr("the first is 3, \"<tool>\""),
                    HasSubstr("model.resize_token_embeddings(len(tokenizer))")));
}

TEST(TokensWithoutRows, are_none_where_no_vocabulary_can_be_read) {
  const TemporaryFolder model;
  EXPECT_EQ(tell_tokens_without_rows(model.path(), 1), "");
  for (const char* text :
       {"{}", "no JSON", R"({"model": {"vocab": {"a": "b"}}})", R"({"model": {"vocab": [1]}})"}) {
    model.write("tokenizer.json", text);
    EXPECT_EQ(tell_tokens_without_rows(model.path(), 1), "") << text;
  }
}

}  // namespace
}  // namespace trireme::tokenizer_vocabulary_test
