// Text to an indexed dataset: documents in order, each ended once, equal on any number of threads.
#include "trireme/data/tokenize_corpus.h"

#include <algorithm>
#include <tuple>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/tokenizer/byte_level_tokenizer.h"

#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tokenizer_with_begin.h"

namespace trireme {
namespace {

using testing::bytes_of;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

class TokenizeCorpus : public ::testing::Test {
 protected:
  TokenizeCorpus() : threads_(at::get_num_threads()) {}
  ~TokenizeCorpus() override { at::set_num_threads(threads_); }

  Tokenizer byte_level() const {
    write_byte_level_tokenizer(folder_ / "tokenizer");
    return Tokenizer::load(folder_ / "tokenizer");
  }
  TemporaryFolder folder_;
  int threads_;
};

TEST_F(TokenizeCorpus, each_document_is_one_sequence_ended_once) {
  const Tokenizer tokenizer = byte_level();
  const std::vector<std::filesystem::path> inputs{
      folder_.write("a.txt", "ab"), folder_.write("b.txt", "c<|endoftext|>"), folder_.write("c.txt", "\xff")};
  const CorpusReport report = tokenize_corpus(tokenizer, inputs, folder_ / "set", {});
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.tokens, 3 + 2 + 4);
  EXPECT_EQ(report.longest_document_tokens, 4);
  EXPECT_EQ(report.replaced_documents, 1);
  EXPECT_EQ(report.source.files, 3);
  EXPECT_EQ(bytes_of(folder_ / "set.bin"), std::string("a\0b\0\0\1"
                                                       "c\0\0\1"
                                                       "\xef\0\xbf\0\xbd\0\0\1",
                                                       18));
  const auto lines = folder_.write("lines.jsonl", "{\"text\": \"\xff\"}\n{\"text\": \"d\"}\n");
  EXPECT_EQ(tokenize_corpus(tokenizer, {lines}, folder_ / "lines", {}).replaced_documents, 1);
  CorpusOptions bare;
  bare.append_end_of_text = false;
  EXPECT_EQ(tokenize_corpus(tokenizer, inputs, folder_ / "bare", bare).tokens, 2 + 2 + 3);
}

TEST_F(TokenizeCorpus, the_set_is_the_same_on_any_number_of_threads) {
  const Tokenizer tokenizer =
      Tokenizer::load(testing::source_folder() / "tests/tokenizer/fixtures/qwen_tokenizer.json");
  const std::vector<std::filesystem::path> inputs{testing::source_folder() / "trireme/base",
                                                  testing::source_folder() / "tests/data"};
  at::set_num_threads(1);
  tokenize_corpus(tokenizer, inputs, folder_ / "one", {});
  at::set_num_threads(4);
  tokenize_corpus(tokenizer, inputs, folder_ / "four", {});
  EXPECT_EQ(bytes_of(folder_ / "one.bin"), bytes_of(folder_ / "four.bin"));
  EXPECT_EQ(bytes_of(folder_ / "one.idx"), bytes_of(folder_ / "four.idx"));
}

// As Llama's tokenizer puts <|begin_of_text|> before a text, and its chat template too.
TEST_F(TokenizeCorpus, the_first_token_is_there_once_where_the_text_has_it_too) {
  const Tokenizer tokenizer = testing::tokenizer_with_begin(folder_ / "tokenizer");
  CorpusOptions bare;
  bare.append_end_of_text = false;
  const std::vector<std::filesystem::path> inputs{folder_.write("a.txt", "<|endoftext|>ab"),
                                                  folder_.write("b.txt", "ab")};
  const CorpusReport report = tokenize_corpus(tokenizer, inputs, folder_ / "set", bare);
  EXPECT_EQ(report.tokens, 3 + 3);
  EXPECT_EQ(report.begun_documents, 1);
  EXPECT_THAT(report.changed_text_lines(), ::testing::ElementsAre(HasSubstr("there once: 1 documents")));
  const std::string set = bytes_of(folder_ / "set.bin");
  EXPECT_EQ(set.substr(0, set.size() / 2), set.substr(set.size() / 2));
}

// Of a byte-level tokenizer, which writes each byte as one character.
int64_t bytes_of_token(const Tokenizer& tokenizer, int64_t id) {
  const std::string& token = tokenizer.token_of_id(static_cast<int32_t>(id));
  return std::ranges::count_if(token, [](char byte) { return (byte & 0xc0) != 0x80; });
}

// With a tokenizer that puts nothing before a text, one that puts <|begin_of_text|> there, and a text that has
// it already, as a chat template writes it.
TEST_F(TokenizeCorpus, a_token_with_a_byte_of_the_completion_is_predicted_wherever_the_prompt_ends) {
  const std::string text = "int main() { return the_number; }\n// the next of the functions\n";
  for (const auto& [fixture, begin, written] : std::vector<std::tuple<std::string, int64_t, std::string>>{
           {"qwen", 0, ""}, {"llama3", 1, ""}, {"llama3", 1, "<|begin_of_text|>"}}) {
    const Tokenizer tokenizer = Tokenizer::load(testing::source_folder() / "tests/tokenizer/fixtures" /
                                                (fixture + "_tokenizer.json"));
    ASSERT_EQ(std::ssize(tokenizer.begin_of_text()), begin);
    std::string lines;
    for (size_t split = 0; split <= text.size(); ++split)
      lines +=
          Json{{"prompt", written + text.substr(0, split)}, {"completion", text.substr(split)}}.dump() + "\n";
    const auto file = folder_.write("in.jsonl", lines);
    const CorpusReport report = tokenize_corpus(tokenizer, {file}, folder_ / "set", {});
    EXPECT_EQ(report.begun_documents, written.empty() ? 0 : report.documents);
    const IndexedDataset set(folder_ / "set");
    ASSERT_EQ(set.documents(), std::ssize(text) + 1);
    EXPECT_EQ(set.prompts().tokens_in({0, set.tokens()}), report.prompt_tokens);
    const std::vector<int32_t> whole = tokenizer.encode(text);
    int64_t exact = 0, prompts = 0;
    for (int64_t split = 0; split <= std::ssize(text); ++split) {
      const int64_t first = set.document_begin(split), end = set.document_begin(split + 1);
      std::vector<int64_t> ids(static_cast<size_t>(end - first));
      set.read(first, end - first, ids.data());
      ASSERT_EQ(ids.back(), tokenizer.end_of_text_id());
      ids.pop_back();
      EXPECT_TRUE(std::ranges::equal(ids, whole)) << "the text is tokenized as one";
      const int64_t prompt = set.prompts().tokens_in({first, end});
      if (prompt > 0) ++prompts;
      EXPECT_EQ(set.prompts().tokens_in({first, first + prompt}), prompt) << "the prompt comes first";
      EXPECT_TRUE(prompt >= begin || (split == 0 && written.empty())) << "the beginning is predicted";
      int64_t bytes = 0;
      for (int64_t t = begin; t < prompt; ++t)
        bytes += bytes_of_token(tokenizer, ids[static_cast<size_t>(t)]);
      EXPECT_LE(bytes, split);
      if (bytes == split) ++exact;
      EXPECT_TRUE(bytes == split || !text.substr(0, static_cast<size_t>(split)).ends_with("}\n"));
    }
    EXPECT_EQ(report.prompts, prompts);
    EXPECT_GE(exact, std::ssize(whole) / 2) << "where a token ends, the prompt mostly ends with it";
    EXPECT_LT(exact, std::ssize(text)) << "no prompt ends within a token";
  }
}

TEST_F(TokenizeCorpus, a_text_has_no_prompt_and_the_end_after_an_empty_completion_is_predicted) {
  for (const char* fixture : {"qwen", "llama3", "mistral"}) {
    const Tokenizer tokenizer = Tokenizer::load(testing::source_folder() / "tests/tokenizer/fixtures" /
                                                cat(fixture, "_tokenizer.json"));
    const auto text = folder_.write("text.jsonl", R"({"text": "the end"})");
    EXPECT_EQ(tokenize_corpus(tokenizer, {text}, folder_ / "set", {}).prompts, 0) << fixture;
    EXPECT_TRUE(IndexedDataset(folder_ / "set").prompts().empty()) << fixture;
    const auto asked = folder_.write("asked.jsonl", R"({"prompt": "the end", "completion": ""})");
    const CorpusReport report = tokenize_corpus(tokenizer, {asked}, folder_ / "set", {});
    EXPECT_EQ(report.prompt_tokens, report.tokens - 1) << fixture;
  }
}

TEST_F(TokenizeCorpus, failures_leave_nothing_behind) {
  const Tokenizer tokenizer = byte_level();
  const auto good = folder_.write("in/a.txt", "abc"), bad = folder_.write("in/b.jsonl", "{");
  const size_t before = folder_.files();
  EXPECT_THAT(message_of<DataError>([&] {
                tokenize_corpus(tokenizer, {good, bad}, folder_ / "set", {});
              }),
              HasSubstr("b.jsonl:1"));
  CorpusOptions small_model;
  small_model.vocab_size = 99;
  EXPECT_THAT(
      message_of<DataError>([&] { tokenize_corpus(tokenizer, {good}, folder_ / "set", small_model); }),
      HasSubstr("token id 99"));
  EXPECT_EQ(folder_.files(), before);
}

TEST_F(TokenizeCorpus, an_input_without_text_is_refused) {
  const Tokenizer tokenizer = byte_level();
  folder_.write("in/image", std::string(4, '\0'));
  EXPECT_THAT(
      message_of<DataError>([&] { tokenize_corpus(tokenizer, {folder_ / "in"}, folder_ / "set", {}); }),
      HasSubstr("such as"));
  const auto empty = folder_.write("empty.txt", "");
  EXPECT_THAT(message_of<DataError>([&] { tokenize_corpus(tokenizer, {empty}, folder_ / "set", {}); }),
              HasSubstr("is the input empty?"));
}

TEST_F(TokenizeCorpus, a_failing_document_is_named) {
  Json json = read_json(testing::source_folder() / "tests/tokenizer/fixtures/gpt2_tokenizer.json");
  json["model"]["vocab"].erase("~");
  json["model"]["vocab"]["never"] = 93;
  const Tokenizer tokenizer = Tokenizer::load(folder_.write("tokenizer.json", json.dump()));
  const auto file =
      folder_.write("a.jsonl", "{\"text\": \"fine\"}\n{\"text\": \"a~\"}\n{\"text\": \"b~\"}\n");
  EXPECT_THAT(message_of<DataError>([&] { tokenize_corpus(tokenizer, {file}, folder_ / "set", {}); }),
              HasSubstr("a.jsonl:2"));
}

}  // namespace
}  // namespace trireme
