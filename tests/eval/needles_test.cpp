// A sample of needles, read back as text: what it holds, where, and that it is as long as it was asked to be.
#include "trireme/eval/needles.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/tokenizer/byte_level_tokenizer.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tokenizer_with_begin.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::message_of;

class Needles : public ::testing::Test {
 protected:
  Needles() {
    write_byte_level_tokenizer(folder_ / "tokenizer");
    tokenizer_.emplace(Tokenizer::load(folder_ / "tokenizer"));
    IndexedDatasetWriter writer(folder_ / "hay", 300);
    for (const int size : {40, 1, 300, 7}) {
      std::vector<int32_t> ids(static_cast<size_t>(size), '.');
      ids.push_back(tokenizer_->end_of_text_id());
      writer.add_document(ids);
    }
    writer.finish();
    haystack_.emplace(folder_ / "hay");
  }

  EncodedDocument sample(const NeedleOptions& options) const {
    return make_needle_sample(*tokenizer_, *haystack_, options);
  }
  static std::string text_of(const EncodedDocument& sample) { return {sample.ids.begin(), sample.ids.end()}; }

  testing::TemporaryFolder folder_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<IndexedDataset> haystack_;
};

TEST_F(Needles, a_sample_is_haystack_needle_haystack_question_and_its_answer_alone_is_predicted) {
  const std::regex whole(
      "(\\.*)\nThe secret number of ([A-Z][a-z]+) is ([1-9][0-9]{6})\\.\n(\\.*)\n\nQuestion: What is the "
      "secret "
      "number of ([A-Z][a-z]+)\\?\nAnswer: The secret number of ([A-Z][a-z]+) is( [0-9]+)");
  std::set<std::string> numbers;
  for (const int64_t tokens : {200, 333, 4000}) {
    for (const double depth : {0.0, 0.25, 0.5, 1.0}) {
      const EncodedDocument made = sample({.tokens = tokens, .depth = depth, .seed = numbers.size()});
      ASSERT_EQ(std::ssize(made.ids), tokens);
      const std::string text = text_of(made);
      std::smatch parts;
      ASSERT_TRUE(std::regex_match(text, parts, whole)) << text;
      EXPECT_EQ(parts[1].length(),
                std::llround(depth * static_cast<double>(parts[1].length() + parts[4].length())));
      EXPECT_EQ(parts[2], parts[5]);
      EXPECT_EQ(parts[2], parts[6]);
      EXPECT_EQ(parts[7], " " + parts[3].str());
      EXPECT_EQ(made.prompt_tokens, tokens - parts[7].length());
      numbers.insert(parts[3]);
    }
  }
  EXPECT_EQ(numbers.size(), 12U) << "seeds draw the same numbers";
}

TEST_F(Needles, a_seed_is_a_sample) {
  const NeedleOptions options{.tokens = 500, .depth = 0.3, .distractors = 2, .seed = 9};
  EXPECT_EQ(sample(options).ids, sample(options).ids);
}

TEST_F(Needles, distractors_answer_other_questions) {
  const EncodedDocument made = sample({.tokens = 4000, .depth = 0.5, .distractors = 31});
  ASSERT_EQ(made.ids.size(), 4000U);
  const std::string text = text_of(made);
  const std::regex needle("\nThe secret number of ([A-Z][a-z]+) is ([0-9]{7})\\.\n");
  std::set<std::string> cities, numbers;
  for (std::sregex_iterator at(text.begin(), text.end(), needle), end; at != end; ++at) {
    cities.insert((*at)[1]);
    numbers.insert((*at)[2]);
  }
  EXPECT_EQ(cities.size(), 32U);
  EXPECT_EQ(numbers.size(), 32U);
  const std::smatch asked = [&] {
    std::smatch found;
    std::regex_search(text, found, std::regex("secret number of ([A-Za-z]+) is ([0-9]+)$"));
    return found;
  }();
  EXPECT_THAT(text, HasSubstr(cat("\nThe secret number of ", asked[1].str(), " is ", asked[2].str(), ".\n")));
}

TEST_F(Needles, the_beginning_of_a_text_is_there_once_where_the_tokenizer_writes_it) {
  tokenizer_.emplace(testing::tokenizer_with_begin(folder_ / "with_begin"));
  const EncodedDocument made = sample({.tokens = 300, .depth = 0.5, .distractors = 1});
  EXPECT_EQ(std::ranges::count(made.ids, 256), 1);
  EXPECT_EQ(made.ids.front(), 256);
  EXPECT_EQ(made.ids.size(), 300U);
  EXPECT_EQ(made.prompt_tokens, 300 - 8);
}

TEST_F(Needles, what_the_tokenizer_puts_behind_a_text_stands_nowhere) {
  testing::tokenizer_with_begin(folder_ / "both");
  Json json = read_json(folder_ / "both/tokenizer.json");
  Json& around = json["post_processor"]["single"];
  around.push_back(Json(around[0]));
  folder_.write("both/tokenizer.json", json.dump());
  tokenizer_.emplace(Tokenizer::load(folder_ / "both"));
  ASSERT_EQ(tokenizer_->encode("a"), (std::vector<int32_t>{256, 'a', 256}));
  const EncodedDocument made = sample({.tokens = 300, .depth = 0.5, .distractors = 1});
  EXPECT_EQ(std::ranges::count(made.ids, 256), 1);
  EXPECT_EQ(made.ids.front(), 256);
  EXPECT_EQ(made.ids.size(), 300U);
  EXPECT_EQ(made.prompt_tokens, 300 - 8);
}

TEST_F(Needles, a_sample_without_room_and_a_haystack_of_nothing_are_refused) {
  EXPECT_THAT(message_of<ConfigError>([&] { sample({.tokens = 100, .distractors = 3}); }),
              AllOf(HasSubstr("3 distractors take"), HasSubstr("a sample of 100 has no room"),
                    EndsWith("give a longer one")));
  IndexedDatasetWriter writer(folder_ / "empty", 300);
  writer.add_document(std::vector<int32_t>(5, tokenizer_->end_of_text_id()));
  writer.finish();
  haystack_.emplace(folder_ / "empty");
  EXPECT_THAT(message_of<DataError>([&] { sample({.tokens = 500}); }),
              HasSubstr("nothing but ends of texts"));
}

}  // namespace
}  // namespace trireme
