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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
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
  EXPECT_EQ(source.counts().binary_files, 1);
  EXPECT_EQ(source.counts().hidden_entries, 2);
  EXPECT_EQ(source.counts().empty_documents, 2);
  EXPECT_EQ(source.counts().text_bytes, 3 + 2 + 4 + 1 + 2 + 2);
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
  EXPECT_THAT(texts(source), ElementsAre("1", "2", "2"));
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
  EXPECT_THAT(message("{\"text\": \"a\"}\n{\"text\": \"b\"\n"),
              AllOf(HasSubstr("a.jsonl:2: not valid JSON")));
  EXPECT_THAT(message("{\"text\": \"a\"}\n\n{\"txt\": \"b\"}\n"),
              AllOf(HasSubstr("a.jsonl:3"), HasSubstr("--field")));
  EXPECT_THAT(message("{\"text\": 5}\n"), HasSubstr("a.jsonl:1: \"text\" is number; expected a string"));
  EXPECT_THAT(message("[1]\n"), HasSubstr("a.jsonl:1: has no \"text\""));
}

TEST(TextSource, an_input_that_is_missing_or_binary_is_refused) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<ConfigError>([&] { TextSource source({folder / "none"}, "text"); }),
              HasSubstr("none does not exist"));
  const auto binary = folder.write("b.txt", std::string(1, '\0'));
  EXPECT_THAT(message_of<DataError>([&] { TextSource source({binary}, "text"); }), HasSubstr("is binary"));
}

}  // namespace
}  // namespace trireme
