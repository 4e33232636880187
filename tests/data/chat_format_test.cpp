// How the chats of sets are written, as their PREFIX.set.json say it.
#include "trireme/data/chat_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme::chat_format_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using ::testing::Pair;

class ChatFormatOfSets : public ::testing::Test {
 protected:
  ChatFormat of(const std::vector<std::string>& names) {
    std::vector<std::filesystem::path> prefixes;
    for (const std::string& name : names) prefixes.push_back(folder_ / name);
    return chat_format_of_sets(prefixes, [&](const std::string& note) { notes_.push_back(note); });
  }
  testing::TemporaryFolder folder_;
  std::vector<std::string> notes_;
};

TEST_F(ChatFormatOfSets, has_the_ends_of_all_and_nothing_of_sets_that_say_none) {
  folder_.write("text.set.json", R"({"format": 1})");
  folder_.write("a.set.json", R"({"format": 1, "answer_end_tokens": {"<|im_end|>": 7, "</s>": 2}})");
  folder_.write("b.set.json", R"({"format": 1, "answer_end_tokens": {"<|im_end|>": 7, "<call>": 9}})");
  EXPECT_TRUE(of({"text", "none"}).empty());
  EXPECT_THAT(of({"a", "text", "none", "b.bin"}).end_tokens,
              ElementsAre(Pair("</s>", 2), Pair("<call>", 9), Pair("<|im_end|>", 7)));
}

TEST_F(ChatFormatOfSets, has_the_first_template_and_says_so_where_there_are_two) {
  folder_.write("a.set.json", R"({"format": 1})");
  folder_.write("b.set.json", R"({"format": 1, "chat_template": "one"})");
  folder_.write("c.set.json", R"({"format": 1, "chat_template": "one"})");
  folder_.write("d.set.json", R"({"format": 1, "chat_template": "two"})");
  EXPECT_EQ(of({"a", "b", "c"}).chat_template, "one");
  EXPECT_THAT(notes_, IsEmpty());
  EXPECT_EQ(of({"a", "d", "b"}).chat_template, "two");
  EXPECT_THAT(notes_,
              ElementsAre(AllOf(HasSubstr("d.set.json and "), HasSubstr("b.set.json are written by two chat "
                                                                        "templates: that of the former"))));
}

TEST_F(ChatFormatOfSets, is_read_again_as_it_was_written) {
  Json json = {{"other", 1}};
  write_chat_format({}, json);
  EXPECT_EQ(json, (Json{{"other", 1}}));
  write_chat_format({.end_tokens = {{"</s>", 2}}, .chat_template = "{{ a }}\n"}, json);
  EXPECT_THAT(parse_chat_format(json, "it").end_tokens, ElementsAre(Pair("</s>", 2)));
  EXPECT_EQ(parse_chat_format(json, "it").chat_template, "{{ a }}\n");
}

TEST_F(ChatFormatOfSets, that_is_damaged_is_named) {
  for (const char* ends : {"[7]", R"({"<|im_end|>": -1})", R"({"<|im_end|>": "7"})"}) {
    folder_.write("a.set.json", cat(R"({"format": 1, "answer_end_tokens": )", ends, "}"));
    EXPECT_THAT(message_of<DataError>([&] { of({"a"}); }),
                AllOf(HasSubstr("a.set.json"), HasSubstr("answer_end_tokens")))
        << ends;
  }
}

}  // namespace
}  // namespace trireme::chat_format_test
