// A set remembers its tokenizer's vocabulary; a model with another one does not read it.
#include "trireme/data/set_fingerprint.h"

#include <algorithm>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/tokenize_corpus.h"

#include "tests/support/error_message.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

class SetFingerprint : public ::testing::Test {
 protected:
  SetFingerprint() {
    const Json json = gpt2();
    folder_.write("model/tokenizer.json", json.dump());
    tokenize_corpus(Tokenizer::load(folder_ / "model"), {folder_.write("in.txt", "it is text")},
                    folder_ / "set", {});
  }
  static Json gpt2() {
    return read_json(testing::source_folder() / "tests/tokenizer/fixtures/gpt2_tokenizer.json");
  }
  std::string check_with(const Json& tokenizer) const {
    folder_.write("other/tokenizer.json", tokenizer.dump());
    return message_of<ConfigError>(
        [&] { check_set_fingerprint(IndexedDataset(folder_ / "set"), folder_ / "other"); });
  }
  TemporaryFolder folder_;
};

TEST_F(SetFingerprint, is_written_beside_the_set_and_taken_by_its_tokenizer) {
  const Json written = read_json(folder_ / "set.set.json");
  EXPECT_EQ(written["tokenizer"], (folder_ / "model/tokenizer.json").string());
  EXPECT_EQ(written["vocabulary"], 701);
  EXPECT_EQ(written["tokens"], IndexedDataset(folder_ / "set").tokens());
  EXPECT_EQ(written["documents"], 1);
  EXPECT_EQ(written["end_of_text_appended"], true);
  EXPECT_NO_THROW(check_set_fingerprint(IndexedDataset(folder_ / "set"), folder_ / "model"));
  EXPECT_NO_THROW(check_set_fingerprint(IndexedDataset(folder_ / "set.bin"), folder_ / "model"));
}

TEST_F(SetFingerprint, another_vocabulary_of_the_same_size_is_refused_by_name) {
  Json other = gpt2();
  std::swap(other["model"]["vocab"]["a"], other["model"]["vocab"]["b"]);
  EXPECT_THAT(check_with(other), AllOf(HasSubstr("set.set.json"), HasSubstr("model/tokenizer.json"),
                                       HasSubstr("other/tokenizer.json"), HasSubstr("701 tokens"),
                                       HasSubstr("trireme tokenize")));
  Json unigram = gpt2();
  unigram["model"]["vocab"] = Json::array();
  EXPECT_THAT(check_with(unigram), HasSubstr("mean other tokens"));
}

TEST_F(SetFingerprint, a_set_that_was_changed_since_is_refused) {
  for (const char* count : {"documents", "tokens", "prompt_tokens"}) {
    Json written = read_json(folder_ / "set.set.json");
    written[count] = written[count].get<int64_t>() + 1;
    folder_.write("set.set.json", written.dump());
    EXPECT_THAT(message_of<DataError>(
                    [&] { check_set_fingerprint(IndexedDataset(folder_ / "set"), folder_ / "model"); }),
                AllOf(HasSubstr(cat("a set with ", count)), HasSubstr("make it anew")));
    written.erase(count);
    folder_.write("set.set.json", written.dump());
    EXPECT_NO_THROW(check_set_fingerprint(IndexedDataset(folder_ / "set"), folder_ / "model"))
        << "older files count less";
  }
}

TEST_F(SetFingerprint, a_set_with_an_id_that_the_model_has_no_row_for_is_refused_at_once) {
  const IndexedDataset set(folder_ / "set");
  std::vector<int64_t> ids(static_cast<size_t>(set.tokens()));
  set.read(0, set.tokens(), ids.data());
  const int64_t largest = *std::ranges::max_element(ids);
  EXPECT_EQ(read_json(folder_ / "set.set.json")["largest_id"], largest);
  const auto check = [&](int64_t vocab_size) {
    return message_of<ConfigError>([&] { check_set_fingerprint(set, folder_ / "model", vocab_size); });
  };
  EXPECT_THAT(check(largest), AllOf(HasSubstr("set.set.json"), HasSubstr(cat("the id ", largest)),
                                    HasSubstr(cat("vocabulary has ", largest, " ids")),
                                    HasSubstr("model.resize_token_embeddings(len(tokenizer))")));
  EXPECT_EQ(check(largest + 1), "no error");
  EXPECT_EQ(check(0), "no error") << "not compared";
  Json older = read_json(folder_ / "set.set.json");
  older.erase("largest_id");
  folder_.write("set.set.json", older.dump());
  EXPECT_EQ(check(largest), "no error") << "older files do not tell it";
}

// Unigram: a list of tokens and their scores, by id.
TEST_F(SetFingerprint, a_list_of_tokens_is_a_vocabulary_too) {
  Json unigram = gpt2();
  std::map<int64_t, std::string> by_id;
  for (const auto& [token, id] : unigram["model"]["vocab"].items()) by_id[id.get<int64_t>()] = token;
  ASSERT_EQ(by_id.rbegin()->first + 1, std::ssize(by_id));
  unigram["model"]["vocab"] = Json::array();
  for (const auto& [id, token] : by_id) unigram["model"]["vocab"].push_back({token, -1.5});
  EXPECT_EQ(check_with(unigram), "no error");
  std::swap(unigram["model"]["vocab"][40], unigram["model"]["vocab"][41]);
  EXPECT_THAT(check_with(unigram), HasSubstr("mean other tokens (id 40 is"));
}

Json with_added(Json tokenizer, int64_t id, const char* token) {
  tokenizer["added_tokens"].push_back({{"id", id}, {"content", token}});
  return tokenizer;
}

TEST_F(SetFingerprint, a_tokenizer_that_only_gained_tokens_is_taken) {
  const Json more = with_added(gpt2(), 701, "<|pad|>");
  EXPECT_EQ(check_with(more), "no error");
  std::filesystem::remove(folder_ / "model/tokenizer.json");
  EXPECT_EQ(check_with(more), "no error") << "whether or not the first tokenizer is still there";
}

TEST_F(SetFingerprint, the_first_id_that_differs_is_named) {
  Json other = gpt2();
  const int64_t a = other["model"]["vocab"]["a"], b = other["model"]["vocab"]["b"];
  std::swap(other["model"]["vocab"]["a"], other["model"]["vocab"]["b"]);
  EXPECT_THAT(check_with(other),
              HasSubstr(cat("id ", std::min(a, b), " is \"a\" in the set and \"b\" in the model")));
  Json fewer = gpt2();
  fewer["added_tokens"] = Json::array();
  EXPECT_THAT(check_with(fewer), HasSubstr("in the set and no token of the model"));
  std::filesystem::remove(folder_ / "model/tokenizer.json");
  EXPECT_THAT(check_with(other), HasSubstr("not all of the set's 701 ids are the same tokens"));
}

// As newer versions of the library write the file again.
TEST_F(SetFingerprint, a_file_written_otherwise_with_the_same_tokens_is_taken) {
  Json same = gpt2();
  same["version"] = "2.0";
  same["truncation"] = nullptr;
  same["model"]["merges"] = Json::array();
  EXPECT_EQ(check_with(same), "no error");
}

TEST_F(SetFingerprint, sets_of_other_programs_and_models_without_a_tokenizer_are_taken) {
  EXPECT_NO_THROW(check_set_fingerprint(IndexedDataset(folder_ / "set"), folder_ / "nowhere"));
  std::filesystem::remove(folder_ / "set.set.json");
  folder_.write("other/tokenizer.json", "{}");
  EXPECT_NO_THROW(check_set_fingerprint(IndexedDataset(folder_ / "set"), folder_ / "other"));
}

TEST_F(SetFingerprint, a_damaged_one_is_named) {
  folder_.write("set.set.json", R"({"format": 1, "tokenizer_sha256": 7})");
  EXPECT_THAT(message_of<DataError>(
                  [&] { check_set_fingerprint(IndexedDataset(folder_ / "set"), folder_ / "model"); }),
              AllOf(HasSubstr("set.set.json"), HasSubstr("\"tokenizer_sha256\" is 7")));
}

}  // namespace
}  // namespace trireme
