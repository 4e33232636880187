// `trireme tokenize` leaves a set alone unless told to replace it, and does as its flags say.
#include "trireme/cli/tokenize.h"

#include <fstream>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/init.h"
#include "trireme/data/indexed_dataset.h"

#include "tests/cli/stdout_of.h"
#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/temporary_folder.h"

namespace trireme::tokenize_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Tokenize : public ::testing::Test {
 protected:
  Tokenize() {
    testing::stdout_of([&] {
      return run_init({"--preset", "tiny", "--out", path("model"), "--set", "num_hidden_layers=1",
                       "hidden_size=32", "intermediate_size=32"});
    });
    std::ofstream(path("lines.jsonl")) << R"({"text": "one", "body": "eleven"})"
                                       << "\n"
                                       << R"({"text": "two", "body": "twelve"})"
                                       << "\n";
  }
  ~Tokenize() override { at::set_num_threads(threads_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  void tokenize(const std::vector<std::string>& more) {
    std::vector<std::string> words{"--tokenizer",       path("model"), "--input",
                                   path("lines.jsonl"), "--output",    path("set")};
    words.insert(words.end(), more.begin(), more.end());
    told_ = testing::stdout_of([&] { return run_tokenize(words); });
  }
  int64_t tokens() const { return IndexedDataset(path("set")).tokens(); }

  const int threads_ = at::get_num_threads();
  testing::TemporaryFolder folder_;
  std::string told_;
};

TEST_F(Tokenize, a_set_that_is_there_stays_unless_overwrite_is_given) {
  tokenize({});
  const std::string before = testing::bytes_of(path("set.bin"));
  const auto refused = [&] {
    return testing::message_of<ConfigError>([&] { tokenize({"--field", "body"}); });
  };
  EXPECT_THAT(refused(), AllOf(HasSubstr("set.idx is there already"), HasSubstr("--overwrite")));
  EXPECT_EQ(testing::bytes_of(path("set.bin")), before);
  std::filesystem::remove(path("set.idx"));
  EXPECT_THAT(refused(), HasSubstr("set.bin is there already")) << "half a set is somebody's too";
  tokenize({"--field", "body", "--overwrite"});
  EXPECT_NE(testing::bytes_of(path("set.bin")), before);
  EXPECT_EQ(folder_.files(), 4 + 4U) << "nothing is left beside the set, which is three files";
}

// Byte-level: a token a letter, and one after each document.
TEST_F(Tokenize, does_as_its_flags_say) {
  tokenize({});
  EXPECT_EQ(tokens(), 3 + 3 + 2);
  tokenize({"--overwrite", "--field", "body"});
  EXPECT_EQ(tokens(), 6 + 6 + 2);
  tokenize({"--overwrite", "--no_append_eos"});
  EXPECT_EQ(tokens(), 3 + 3);
  std::ofstream(path("lines.jsonl"), std::ios::app) << "{}\n";
  EXPECT_THAT(testing::message_of<DataError>([&] { tokenize({"--overwrite"}); }),
              AllOf(HasSubstr("lines.jsonl:3: has no"), HasSubstr("--on_bad_record skip")));
  tokenize({"--overwrite", "--on_bad_record", "skip"});
  EXPECT_EQ(tokens(), 3 + 3 + 2);
  EXPECT_THAT(told_, AllOf(HasSubstr("lines that are no documents, skipped: 1"), HasSubstr("lines.jsonl:3")));
  EXPECT_THAT(testing::message_of<DataError>([&] {
                tokenize({"--overwrite", "--on_bad_record", "skip", "--field", "none"});
              }),
              HasSubstr("no line is a document, and 3 were skipped"));
  tokenize({"--overwrite", "--on_bad_record", "skip", "--threads", "1"});
  EXPECT_EQ(at::get_num_threads(), 1);
}

}  // namespace
}  // namespace trireme::tokenize_test
