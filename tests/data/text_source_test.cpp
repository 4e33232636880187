// Which documents come out of folders, text files and .jsonl files, in which order, and what is refused.
#include "trireme/data/text_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using testing::TemporaryFolder;

std::vector<std::string> texts(TextSource& source) {
  std::vector<std::string> all;
  while (auto document = source.next()) all.push_back(document->text);
  return all;
}

TEST(TextSource, a_folder_gives_its_text_files_in_the_order_of_their_paths) {
  const TemporaryFolder folder;
  folder.write("in/b.txt", "b");
  folder.write("in/a/z.cpp", "az");
  folder.write("in/a/b/c", "abc");
  folder.write("in/a.md", "a.md");
  folder.write("in/empty.txt", "");
  folder.write("in/picture", std::string("PNG\0x", 5));
  folder.write("in/.git/config", "hidden");
  folder.write("in/.hidden", "hidden");
  folder.write("in/lines.jsonl", "{\"text\": \"l1\"}\n\n{\"text\": \"\"}\n{\"text\": \"l2\"}");
  TextSource source({folder / "in"}, "text");
  EXPECT_THAT(texts(source), ElementsAre("abc", "az", "a.md", "b", "l1", "l2"));
  EXPECT_EQ(source.counts().files, 6);
  EXPECT_EQ(source.counts().left_out_files, 1);
  EXPECT_EQ(source.counts().hidden_entries, 2);
  EXPECT_EQ(source.counts().empty_documents, 2);
  EXPECT_EQ(source.counts().text_bytes, 3 + 2 + 4 + 1 + 2 + 2);
}

TEST(TextSource, a_tokenized_set_in_a_folder_is_no_text) {
  const TemporaryFolder folder;
  for (const char* const name : {"a.txt", "in/set.bin", "in/set.idx", "in/set.set.json", "in/other.set.json"})
    folder.write(name, name);
  TextSource source({folder / "in"}, "text");
  EXPECT_THAT(texts(source), ElementsAre("in/other.set.json"));
  EXPECT_EQ(source.counts().left_out_files, 3);
  EXPECT_THAT(source.counts().left_out,
              Each(EndsWith("set, which is given by its own name: " + (folder / "in/set").string())));
}

TEST(TextSource, a_run_in_a_folder_is_no_text_by_whatever_name_and_is_told) {
  const TemporaryFolder folder;
  for (const char* const run : {"in/run/", "outside/"}) {
    folder.write(cat(run, "run.lock"), "");
    folder.write(cat(run, "metrics.jsonl"), "{\"loss\": 1}");
    folder.write(cat(run, "checkpoints/step-1/config.json"), "{}");
  }
  std::filesystem::create_directory_symlink("../outside", folder / "in/link");
  folder.write("in/one/checkpoints/text", "1");
  folder.write("in/two/run.lock", "2");
  TextSource source({folder / "in"}, "text");
  EXPECT_THAT(texts(source), ElementsAre("1", "2"));
  EXPECT_EQ(source.counts().left_out_files, 2);
  EXPECT_THAT(source.counts().left_out, ::testing::UnorderedElementsAre(
                                            HasSubstr((folder / "in/run").string() + " is a run's folder"),
                                            HasSubstr((folder / "in/link").string() + " is a run's folder")));
  EXPECT_THAT(message_of<ConfigError>([&] { TextSource itself({folder / "in/run/"}, "text"); }),
              AllOf(HasSubstr("in/run/ is a run's folder"), HasSubstr("expected text")));
}

TEST(TextSource, wrong_bytes_of_a_line_become_replacement_characters_as_in_a_text) {
  const TemporaryFolder folder;
  const auto lines = folder.write("lines.jsonl", "{\"text\": \"a\xff\xe4\xb8 b\"}\n{\"text\": \"c\"}\n");
  const auto text = folder.write("text.txt", "a\xff");
  TextSource source({lines, text}, "text");
  const auto first = source.next(), second = source.next(), third = source.next();
  EXPECT_EQ(first->text, "a\uFFFD\uFFFD b");
  EXPECT_TRUE(first->wrong_utf8);
  EXPECT_FALSE(second->wrong_utf8);
  EXPECT_TRUE(third->wrong_utf8);
}

TEST(TextSource, links_are_followed_but_never_round) {
  const TemporaryFolder folder;
  folder.write("in/a/one", "1");
  folder.write("outside/two", "2");
  std::filesystem::create_directory_symlink(folder / "in", folder / "in/a/loop");
  std::filesystem::create_directory_symlink("..", folder / "in/a/up");
  std::filesystem::create_directory_symlink(folder / "outside", folder / "in/out");
  std::filesystem::create_symlink("nowhere", folder / "in/broken");
  std::filesystem::create_symlink(folder / "outside/two", folder / "in/link");
  TextSource source({folder / "in"}, "text");
  EXPECT_THAT(texts(source), ElementsAre("1", "2"));
  EXPECT_THAT(source.counts().left_out,
              ElementsAre(HasSubstr("in/broken is a link that leads nowhere"),
                          HasSubstr("in/out/two leads to a file that is read already")));
}

TEST(TextSource, a_file_that_is_named_beside_a_folder_that_has_it_is_read_once) {
  const TemporaryFolder folder;
  const auto one = folder.write("in/one", "1"), two = folder.write("two", "2");
  std::filesystem::create_symlink(two, folder / "in/link");
  for (const auto& inputs : std::vector<std::vector<std::filesystem::path>>{
           {one, two, folder / "in"}, {folder / "in", one, two}, {one, one, two}}) {
    TextSource source(inputs, "text");
    EXPECT_THAT(texts(source), ::testing::UnorderedElementsAre("1", "2"));
    EXPECT_EQ(source.counts().left_out_files, inputs.front() == inputs[1] ? 1 : 2);
  }
}

TEST(TextSource, inputs_keep_the_order_given_and_bytes_stay_as_they_are) {
  const TemporaryFolder folder;
  const std::string bytes = "x\r\n\xef\xbb\xbf \xff\n\n";
  TextSource source({folder.write("z.txt", bytes), folder.write("a.txt", "a")}, "text");
  const auto first = source.next();
  EXPECT_EQ(first->text, bytes);
  EXPECT_EQ(first->origin, (folder / "z.txt").string());
  EXPECT_EQ(source.next()->text, "a");
  EXPECT_FALSE(source.next().has_value());
}

TEST(TextSource, lines_take_the_field_asked_for) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.jsonl", "{\"id\": 1, \"body\": \"caf\\u00e9\\n\"}\r\n");
  TextSource source({file}, "body");
  const auto document = source.next();
  EXPECT_EQ(document->text, "caf\xc3\xa9\n");
  EXPECT_EQ(document->origin, file.string() + ":1");
}

TEST(TextSource, a_wrong_line_is_named_with_file_and_line) {
  const auto message = [](const std::string& lines) {
    const TemporaryFolder folder;
    const auto file = folder.write("a.jsonl", lines);
    return message_of<DataError>([&] {
      TextSource source({file}, "text");
      texts(source);
    });
  };
  EXPECT_THAT(message("{\"text\": \"a\"}\n{\"text\": \"b\"\n"), HasSubstr("a.jsonl:2: not valid JSON"));
  EXPECT_THAT(message("{\"text\": \"a\"}\n\n{\"txt\": \"b\"}\n"),
              AllOf(HasSubstr("a.jsonl:3"), HasSubstr("--text_field")));
  EXPECT_THAT(message("{\"text\": 5}\n"), HasSubstr("a.jsonl:1: \"text\" is number; expected a string"));
  EXPECT_THAT(message("{\"messages\": []}\n"), HasSubstr("python -m trireme.chats"));
  EXPECT_THAT(message("{\"text\": \"a\"}\n{\"text\": \"b\", \"n\": 1e400}\n"),
              AllOf(HasSubstr("a.jsonl:2"), HasSubstr("1e400")));
  EXPECT_THAT(message(std::string(100'000, '[')),
              AllOf(HasSubstr("a.jsonl:1"), HasSubstr("more than 100 deep")));
  EXPECT_LT(message("{\"" + std::string(100'000, 'x') + "\": 1}\n").size(), 500U);
  EXPECT_THAT(message("[1]\n"), HasSubstr("a.jsonl:1: has no \"text\""));
}

// A folder of 23 files of lines, of which all but three are at fault, and a text.
void write_lines(const TemporaryFolder& folder) {
  for (int i = 10; i < 33; ++i)
    folder.write(cat("in/", i, ".jsonl"), i % 10 == 0
                                              ? "{\"text\": \"fine\"}\n"
                                              : "{\"text\": \"good\"}\n\n{\"txt\": 1}\n{\"text\": 2}\n");
  folder.write("in/z.txt", "{");
}

TEST(TextSource, that_stops_at_a_bad_record_names_every_file_at_fault) {
  const TemporaryFolder folder;
  write_lines(folder);
  TextSource source({folder / "in"}, "text");
  const std::string message = message_of<DataError>([&] { texts(source); });
  EXPECT_THAT(message,
              AllOf(HasSubstr("20 files cannot be read as documents"),
                    HasSubstr("11.jsonl:3: has no \"text\""), HasSubstr("31.jsonl:3: has no"),
                    HasSubstr("--on_bad_record skip"), Not(HasSubstr(":4")), Not(HasSubstr("more"))));
  folder.write("in/40.jsonl", "{");
  TextSource with_more({folder / "in"}, "text");
  const std::string cut = message_of<DataError>([&] { texts(with_more); });
  EXPECT_THAT(cut, AllOf(HasSubstr("21 files"), HasSubstr("32.jsonl:3"), HasSubstr("and 1 more"),
                         Not(HasSubstr("40.jsonl"))));
}

TEST(TextSource, that_skips_bad_records_counts_them_and_names_the_first) {
  const TemporaryFolder folder;
  write_lines(folder);
  TextSource source({folder / "in"}, "text", "--text_field", OnBadRecord::skip);
  EXPECT_EQ(texts(source).size(), 23U + 1);
  EXPECT_EQ(source.counts().bad_records.count, 2 * 20);
  const std::vector<std::string> lines = bad_record_lines(source.counts().bad_records);
  ASSERT_EQ(lines.size(), 1U + 5 + 1);
  EXPECT_THAT(lines[0], HasSubstr("skipped: 40"));
  EXPECT_THAT(lines[1], HasSubstr("11.jsonl:3: has no \"text\""));
  EXPECT_THAT(lines[2], HasSubstr("11.jsonl:4: \"text\" is number"));
  EXPECT_THAT(lines[6], HasSubstr("and 35 more"));
  EXPECT_TRUE(bad_record_lines({}).empty());
}

TEST(TextSource, an_input_that_is_missing_or_binary_is_refused) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<ConfigError>([&] { TextSource source({folder / "none"}, "text"); }),
              HasSubstr("none does not exist"));
  const auto binary = folder.write("b.txt", std::string(1, '\0'));
  EXPECT_THAT(message_of<DataError>([&] { TextSource source({binary}, "text"); }), HasSubstr("is binary"));
  const auto tokens = folder.write("set.bin", std::string(1, '\0'));
  EXPECT_THAT(message_of<DataError>([&] { TextSource source({tokens}, "text"); }), HasSubstr("PREFIX.idx"));
  EXPECT_THAT(message_of<ConfigError>([&] { TextSource source({folder / std::string(300, 'n')}, "text"); }),
              HasSubstr("too long"));
}

TEST(TextSource, what_is_no_text_is_named_with_what_to_do) {
  const std::vector<std::pair<std::string, const char*>> kinds{
      {"\x1f\x8b\x08", "gzip: unpack it"},
      {"\x28\xb5\x2f\xfd", "zstd: unpack it"},
      {"PK\3\4", "zip archive"},
      {"%PDF-1.7\n1 0 obj", "PDF: extract its text"},
      {"PAR1\x15\x04\x15", "load_dataset(\"parquet\", data_files="},
      {std::string("ARROW1\0\0", 8), "load_dataset(\"arrow\", data_files="},
      {std::string("\xff\xff\xff\xff\xf8\0", 6), "to_json(\"FILE.jsonl\")"},
      {"\xff\xfeh", "UTF-16"},
      {std::string("a\0", 2), "zero byte"}};
  const TemporaryFolder folder;
  folder.write("in/text", "text");
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto file = folder.write(cat("in/", i), kinds[i].first);
    EXPECT_THAT(message_of<DataError>([&] { TextSource source({file}, "text"); }),
                AllOf(HasSubstr(cat("in/", i)), HasSubstr(kinds[i].second)));
  }
  TextSource source({folder / "in"}, "text");
  EXPECT_THAT(texts(source), ElementsAre("text"));
  EXPECT_EQ(source.counts().left_out_files, 9);
  ASSERT_EQ(source.counts().left_out.size(), 5U) << "the first few";
  EXPECT_THAT(source.counts().left_out[3], HasSubstr("in/3 is a PDF"));
}

TEST(TextSource, a_folder_of_a_data_set_is_not_trained_on_by_its_description) {
  const std::string parquet = "PAR1\x15" + std::string(100, 'p'), arrow = "\xff\xff\xff\xff";
  const TemporaryFolder folder;
  folder.write("hub/README.md", "a card");
  folder.write("hub/data/train.parquet", parquet);
  folder.write("saved/data-00000-of-00001.arrow", arrow);
  folder.write("saved/dataset_info.json", "{\"description\": \"longer than the table\"}");
  folder.write("code/README.md", "what this is");
  folder.write("code/short.py", "c");
  folder.write("code/test.parquet", parquet);
  folder.write("code/test.arrow", arrow);
  const auto refusal = [&](const char* name) {
    return message_of<DataError>([&] { TextSource source({folder / "code", folder / name}, "text"); });
  };
  EXPECT_THAT(
      refusal("hub"),
      AllOf(HasSubstr("hub: holds the tables of a data set (1)"), HasSubstr("what describes it (README.md)"),
            HasSubstr("hub/data/train.parquet is a Parquet"), HasSubstr("load_dataset(\"parquet\"")));
  EXPECT_THAT(refusal("saved"), AllOf(HasSubstr("saved/data-00000-of-00001.arrow is an Arrow table"),
                                      HasSubstr("load_dataset(\"arrow\"")));
  TextSource code({folder / "code"}, "text");
  EXPECT_EQ(texts(code).size(), 2U) << "text with tables in it stays text";
}

TEST(TextSource, json_that_is_named_has_lines_and_in_a_folder_is_text) {
  const TemporaryFolder folder;
  const auto lines = folder.write("in/train.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  TextSource named({lines, folder.write("UPPER.JSONL", "{\"text\": \"c\"}")}, "text");
  EXPECT_THAT(texts(named), ElementsAre("a", "b", "c"));
  TextSource inside({folder / "in"}, "text");
  EXPECT_THAT(texts(inside), ElementsAre("{\"text\": \"a\"}\n{\"text\": \"b\"}\n"));
  TextSource both({folder / "in", lines}, "text");
  EXPECT_THAT(texts(both), ElementsAre("a", "b"));
  EXPECT_TRUE(may_hold_json_lines(lines));

  const auto problem = [&](const char* name, const std::string& text) {
    const auto file = folder.write(name, text);
    return message_of<DataError>([&] {
      TextSource source({file}, "text");
      texts(source);
    });
  };
  EXPECT_THAT(problem("list.json", "\n [{\"text\": \"a\"}]"),
              AllOf(HasSubstr("list.json"), HasSubstr("jq -c")));
  EXPECT_THAT(problem("object.json", "{ \n  \"text\": \"a\"\n}"),
              AllOf(HasSubstr("object.json:1"), HasSubstr("one object a line: jq -c . FILE")));
  EXPECT_THAT(problem("list.jsonl", "[\n{\"text\": \"a\"}]"), HasSubstr("one object a line: jq -c '.[]'"));
  for (const char* const table : {"table.csv", "table.TSV"})
    EXPECT_THAT(problem(table, "text,label\na,1\n"), AllOf(HasSubstr(table), HasSubstr("to_json")));
}

TEST(TextSource, a_byte_order_mark_is_no_text) {
  const TemporaryFolder folder;
  TextSource source(
      {folder.write("a.txt", "\xef\xbb\xbfhi"), folder.write("b.jsonl", "\xef\xbb\xbf{\"text\": \"line\"}")},
      "text");
  EXPECT_THAT(texts(source), ElementsAre("hi", "line"));
}

TEST(TextSource, lines_longer_than_a_block_come_whole) {
  const TemporaryFolder folder;
  const std::string a(700'000, 'a'), b(262'144 - 12, 'b');
  TextSource source(
      {folder.write("a.jsonl", "{\"text\": \"" + b + "\"}\n{\"text\": \"" + a + "\"}\n{\"text\": \"c\"}")},
      "text");
  EXPECT_THAT(texts(source), ElementsAre(b, a, "c"));
}

TEST(TextSource, a_prompt_and_its_completion_are_one_document_that_knows_where_the_prompt_ends) {
  const TemporaryFolder folder;
  const auto file = folder.write("in.jsonl",
                                 "{\"prompt\": \"Who?\", \"completion\": \" I.\", \"id\": 3}\n"
                                 "{\"text\": \"whole\"}\n"
                                 "{\"prompt\": \"\", \"completion\": \"\"}\n"
                                 "{\"prompt\": \"\xff\", \"completion\": \"c\"}\n"
                                 "{\"prompt\": \"of no use\", \"text\": \"plain\"}\n"
                                 "{\"text\": \"t\", \"prompt\": null, \"completion\": null}\n"
                                 "{\"text\": null, \"prompt\": \"p\", \"completion\": \"q\"}\n");
  TextSource source({file}, "text");
  const std::vector<std::pair<std::string, int64_t>> expected{
      {"Who? I.", 4}, {"whole", 0}, {"\xef\xbf\xbd\x63", 3}, {"plain", 0}, {"t", 0}, {"pq", 1}};
  for (const auto& [text, prompt_bytes] : expected) {
    const auto document = source.next();
    ASSERT_TRUE(document);
    EXPECT_EQ(document->text, text);
    EXPECT_EQ(document->prompt_bytes, prompt_bytes);
  }
  EXPECT_FALSE(source.next());
  EXPECT_EQ(source.counts().empty_documents, 1);
  TextSource completions({file}, "completion", "--text_field", OnBadRecord::skip);
  EXPECT_THAT(texts(completions), ElementsAre(" I.", "c", "q")) << "a named field is the whole text";
  TextSource prompts({file}, "prompt", "--text_field", OnBadRecord::skip);
  EXPECT_EQ(texts(prompts).front(), "Who?");
}

TEST(TextSource, a_line_that_may_mean_two_texts_and_messages_are_refused_with_what_to_do) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& line) {
    const auto file = folder.write("in.jsonl", line);
    return message_of<DataError>([&] { TextSource({file}, "text").next(); });
  };
  EXPECT_THAT(refused(R"({"text": "a", "prompt": "b", "completion": "c"})"),
              AllOf(HasSubstr("in.jsonl:1"), HasSubstr("which are meant?")));
  EXPECT_THAT(refused(R"({"prompt": [{"role": "user"}], "completion": []})"),
              AllOf(HasSubstr("\"prompt\" is a list of messages"), HasSubstr("python -m trireme.chats")));
  for (const char* chat : {R"({"messages": []})", R"({"conversations": [], "text": null})",
                           R"({"messages": [], "chosen": [], "rejected": []})"})
    EXPECT_THAT(refused(chat), HasSubstr("python -m trireme.chats"));
  EXPECT_THAT(refused(R"({"prompt": "b", "chosen": "c", "rejected": "d"})"),
              AllOf(HasSubstr("has no \"text\""), HasSubstr("preference training"), HasSubstr("DPOTrainer")));
  EXPECT_THAT(refused(R"({"instruction": "b", "input": "", "output": "c"})"),
              AllOf(HasSubstr("has no \"text\""), HasSubstr("{prompt: (.instruction + \"\\n\" + .input")));
  EXPECT_THAT(refused(R"({"prompt": "b", "completion": 3})"), HasSubstr("\"completion\" is number"));
  const char* const tokens = R"({"input_ids": [5, 6], "labels": [5, 6], "text": null})";
  EXPECT_THAT(
      refused(tokens),
      HasSubstr("in.jsonl:1: has no \"text\", but \"input_ids\" of tokens: write them by trireme.write_set"));
  EXPECT_THAT(
      message_of<DataError>([&] { TextSource({folder.write("in.jsonl", tokens)}, "input_ids").next(); }),
      HasSubstr("\"input_ids\" is tokens: write them by trireme.write_set"));
  EXPECT_THAT(refused(R"({"prompt": [5, 6], "completion": [7]})"), HasSubstr("\"prompt\" is tokens"));
  EXPECT_THAT(refused(R"({"prompt": "b"})"), HasSubstr("give a \"prompt\" and its \"completion\""));
}

}  // namespace
}  // namespace trireme
