// A mix holds whole documents of its sets, in the shares that were asked for.
#include "trireme/data/mix_sets.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/data/set_fingerprint.h"

#include "tests/data/numbered_set.h"
#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/temporary_folder.h"

namespace trireme::mix_sets_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

using Tokens = std::vector<int64_t>;

// A document as it is read: its ids, those of prompts negative.
Tokens document_of(const IndexedDataset& set, TokenSpan span) {
  Tokens ids(static_cast<size_t>(span.size()));
  set.read(span.begin, span.size(), ids.data());
  set.prompts().for_prompts(span, [&](TokenSpan prompt) {
    for (int64_t t = prompt.begin; t < prompt.end; ++t) ids[static_cast<size_t>(t - span.begin)] *= -1;
  });
  return ids;
}

std::vector<Tokens> documents_of(const std::filesystem::path& prefix) {
  const IndexedDataset set(prefix);
  std::vector<Tokens> all;
  set.for_documents({0, set.tokens()}, [&](TokenSpan span) { all.push_back(document_of(set, span)); });
  return all;
}

// Documents of `lengths`, whose ids begin at `first`.
void write(const std::filesystem::path& prefix, int32_t first, const std::vector<int64_t>& lengths) {
  IndexedDatasetWriter writer(prefix, 60'000);
  for (const int64_t length : lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = first++;
    // Prompts at the beginning and behind an answer, as a chat has.
    if (length == 9)
      writer.add_document(ids, TokenSpans{{0, 2}, {4, 7}});
    else
      writer.add_document(ids);
  }
  writer.finish();
}

void write_fingerprint(const std::filesystem::path& prefix, const std::string& vocabulary_sha256) {
  std::ofstream(set_fingerprint_file(prefix)) << Json{{"format", 1},
                                                      {"tokenizer", "t"},
                                                      {"tokenizer_sha256", "1"},
                                                      {"vocabulary", 7},
                                                      {"vocabulary_sha256", vocabulary_sha256},
                                                      {"documents", 1},
                                                      {"tokens", 2},
                                                      {"prompt_tokens", 3}};
}

class MixSets : public ::testing::Test {
 protected:
  MixSets() {
    write(path("long"), 1, std::vector<int64_t>(40, 50));                // 2,000 tokens
    write(path("short"), 10'000, {9, 0, 3, 5, 9, 1, 2, 4, 8, 9, 7, 3});  // 60 tokens
  }
  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  MixReport mix(double long_weight, double short_weight, const MixOptions& options = {}) const {
    return mix_sets({{path("long"), long_weight}, {path("short"), short_weight}}, path("mix"), options);
  }

  testing::TemporaryFolder folder_;
};

TEST_F(MixSets, holds_documents_as_they_are_with_their_prompts) {
  mix(1, 1, {.tokens = 500});
  std::map<Tokens, int> known;
  for (const char* name : {"long", "short"})
    for (const Tokens& document : documents_of(path(name))) ++known[document];
  for (const Tokens& document : documents_of(path("mix"))) EXPECT_TRUE(known.contains(document));
}

TEST_F(MixSets, gives_each_set_its_share_all_the_way) {
  for (const double share : {0.2, 0.5, 0.9}) {
    const MixReport report = mix(3 * share, 3 * (1 - share), {.tokens = 3000});
    EXPECT_GE(report.tokens, 3000);
    EXPECT_LT(report.tokens, 3000 + 50);
    double of_long = 0, all = 0;
    int64_t documents = 0;
    for (const Tokens& document : documents_of(path("mix"))) {
      ++documents;
      all += static_cast<double>(document.size());
      if (document.size() == 50) of_long += 50;
      EXPECT_NEAR(of_long, share * all, 50 + 9) << share << " after " << all;
    }
    EXPECT_EQ(report.documents, documents);
    EXPECT_EQ(report.tokens, static_cast<int64_t>(all));
    EXPECT_EQ(report.sources.at(0).tokens, static_cast<int64_t>(of_long));
    EXPECT_DOUBLE_EQ(report.sources.at(1).times_read, (all - of_long) / 60);
    EXPECT_EQ(report.longest_document_tokens, 50);
  }
}

TEST_F(MixSets, reads_every_document_once_before_any_comes_again) {
  mix(1, 9, {.tokens = 400});  // the short ones about six times
  std::map<Tokens, int> times;
  for (const Tokens& document : documents_of(path("mix"))) {
    if (document.size() == 50) continue;
    ++times[document];
    int least = 1000, most = 0;
    for (const Tokens& known : documents_of(path("short"))) {
      if (known.empty()) continue;
      least = std::min(least, times[known]);
      most = std::max(most, times[known]);
    }
    EXPECT_LE(most, least + 1);
  }
  EXPECT_GE(times.begin()->second, 5);
}

TEST_F(MixSets, without_a_size_repeats_nothing) {
  const MixReport report = mix(1, 1);
  std::map<Tokens, int> times;
  for (const Tokens& document : documents_of(path("mix"))) ++times[document];
  for (const auto& [document, count] : times) EXPECT_EQ(count, 1);
  EXPECT_EQ(report.sources.at(1).tokens, 60);  // all of the set that its share asks most of
  EXPECT_LE(report.sources.at(0).tokens, 150);
}

TEST_F(MixSets, another_seed_is_another_order_and_the_same_one_the_same_bytes) {
  const auto bytes = [&](uint64_t seed) {
    mix(1, 1, {.tokens = 500, .seed = seed});
    return testing::bytes_of(indexed_dataset_bin(path("mix")));
  };
  const auto first = bytes(1);
  EXPECT_EQ(first, bytes(1));
  EXPECT_NE(first, bytes(2));
}

TEST_F(MixSets, tells_its_tokenizer_where_all_sets_do_and_refuses_two) {
  EXPECT_FALSE(mix(1, 1).fingerprint);
  write_fingerprint(path("long"), "a");
  EXPECT_FALSE(mix(1, 1).fingerprint);
  EXPECT_FALSE(std::filesystem::exists(set_fingerprint_file(path("mix"))));
  write_fingerprint(path("short"), "a");
  const MixReport report = mix(1, 1);
  EXPECT_TRUE(report.fingerprint);
  const Json made = read_json(set_fingerprint_file(path("mix")));
  EXPECT_EQ(made["vocabulary_sha256"], "a");
  EXPECT_EQ(made["tokens"], report.tokens);
  EXPECT_EQ(made["documents"], report.documents);
  EXPECT_EQ(made["prompt_tokens"], report.prompt_tokens);
  EXPECT_GT(report.prompt_tokens, 0);
  int64_t largest = 0;
  for (const Tokens& document : documents_of(path("mix")))
    for (const int64_t id : document) largest = std::max(largest, std::abs(id));
  EXPECT_EQ(made["largest_id"], largest);
  check_set_fingerprint(IndexedDataset(path("mix")), folder_.path());
  write_fingerprint(path("short"), "b");
  EXPECT_THAT(message_of<ConfigError>([&] { mix(1, 1); }),
              AllOf(HasSubstr("long.set.json"), HasSubstr("short.set.json"), HasSubstr("one tokenizer")));
}

TEST_F(MixSets, has_the_ends_of_answers_of_all_its_sets_whether_or_not_each_tells_its_tokenizer) {
  const auto write_ends = [&](const std::string& name, const Json& ends) {
    Json json = {{"format", 1}};
    if (const auto file = set_fingerprint_file(path(name)); std::filesystem::exists(file))
      json = read_json(file);
    json["answer_end_tokens"] = ends;
    folder_.write(name + ".set.json", json.dump());
  };
  write_fingerprint(path("long"), "a");
  write_ends("long", {{"<end>", 5}});
  const Json first = {{"<end>", 5}};
  EXPECT_FALSE(mix(1, 1).fingerprint);
  const Json alone = read_json(set_fingerprint_file(path("mix")));
  EXPECT_EQ(alone["answer_end_tokens"], first);
  EXPECT_FALSE(alone.contains("tokenizer"));
  folder_.write("tokenizer.json", "{}");
  EXPECT_NO_THROW(check_set_fingerprint(IndexedDataset(path("mix")), folder_.path()));
  mix_sets({{path("mix")}, {path("short")}}, path("again"), {});
  EXPECT_EQ(read_json(set_fingerprint_file(path("again")))["answer_end_tokens"], first);
  write_fingerprint(path("short"), "a");
  write_ends("short", {{"<call>", 9}});
  EXPECT_TRUE(mix(1, 1).fingerprint);
  EXPECT_THAT(mix(1, 1).notes, ::testing::IsEmpty());
  const Json both = {{"<end>", 5}, {"<call>", 9}};
  EXPECT_EQ(read_json(set_fingerprint_file(path("mix")))["answer_end_tokens"], both);
}

TEST_F(MixSets, has_the_chat_template_of_its_first_set_and_says_so_where_another_has_another) {
  for (const char* name : {"long", "short"})
    folder_.write(cat(name, ".set.json"), Json{{"format", 1}, {"chat_template", name}}.dump());
  EXPECT_THAT(mix(1, 1).notes,
              ::testing::ElementsAre(AllOf(HasSubstr("long.set.json and "), HasSubstr("former"))));
  EXPECT_EQ(read_json(set_fingerprint_file(path("mix")))["chat_template"], "long");
}

TEST_F(MixSets, takes_every_id_of_a_set_of_two_bytes_an_id) {
  write(path("other"), 1, {2, 1});
  folder_.write("other.bin", std::string("\xff\xff\xdb\xff\1\0", 6));  // as another writer may
  mix_sets({{path("other")}}, path("mix"), {});
  EXPECT_THAT(documents_of(path("mix")), ::testing::UnorderedElementsAre(Tokens{65'535, 65'499}, Tokens{1}));
  EXPECT_EQ(IndexedDataset(path("mix")).token_type(), TokenType::uint16);
}

TEST_F(MixSets, refuses_to_read_what_it_writes) {
  EXPECT_THAT(message_of<ConfigError>([&] { mix_sets({{path("long")}}, path("long"), {}); }),
              HasSubstr("is a set of the mix itself"));
  EXPECT_EQ(documents_of(path("long")).size(), 40U);
}

}  // namespace
}  // namespace trireme::mix_sets_test
