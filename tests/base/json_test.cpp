#include "trireme/base/json.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

std::string nested(int depth, char open, char close) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open == '{' ? "{\"a\":" : "[";
  text += "0";
  return text + std::string(static_cast<size_t>(depth), close);
}

TEST(Json, an_error_names_the_file_and_the_line) {
  const auto what = message_of<DataError>([] { parse_json("{\n\"a\": 1,\n oops}", "config.json"); });
  EXPECT_THAT(what, AllOf(HasSubstr("config.json"), HasSubstr("line 3")));
}

TEST(Json, a_number_too_large_for_a_double_is_a_data_error_that_shows_it) {
  const auto what = message_of<DataError>([] { parse_json("{\"a\": 1e999}", "config.json"); });
  EXPECT_THAT(what, AllOf(HasSubstr("config.json"), HasSubstr("1e999")));
}

TEST(Json, a_missing_file_is_a_data_error) {
  EXPECT_THAT(message_of<DataError>([] { read_json("/nonexistent/config.json"); }),
              HasSubstr("/nonexistent/config.json"));
}

TEST(Json, a_hundred_levels_are_read_and_one_more_is_refused_with_file_and_line) {
  EXPECT_NO_THROW(parse_json(nested(100, '[', ']'), "a.json"));
  for (const std::string& text :
       {nested(101, '[', ']'), nested(100'000, '{', '}'), std::string(1'000'000, '[')})
    EXPECT_THAT(message_of<DataError>([&] { parse_json("\n" + text, "a.json"); }),
                AllOf(HasSubstr("a.json: line 2"), HasSubstr("more than 100 deep")));
}

TEST(Json, brackets_in_strings_are_not_levels) {
  EXPECT_NO_THROW(
      parse_json("[\"" + std::string(5000, '[') + "\\\"" + std::string(5000, '{') + "\"]", "a.json"));
}

TEST(Json, text_beyond_the_limit_of_bytes_is_refused_before_it_is_built) {
  const testing::TemporaryFolder folder;
  const auto file = folder.write("long.json", "[1,2,3,4,5]");
  const JsonLimits limits{.bytes = 10};
  EXPECT_NO_THROW(read_json(file, {.bytes = 11}));
  EXPECT_THAT(message_of<DataError>([&] { read_json(file, limits); }),
              AllOf(HasSubstr("long.json"), HasSubstr("at most 10")));
  EXPECT_THAT(message_of<DataError>([&] { parse_json("[1,2,3,4,5]", "a.json", limits); }),
              HasSubstr("at most 10"));
}

TEST(Json, equal_keys_are_refused_where_asked) {
  const std::string text = R"({"a": 1, "b": {"a": 2}, "a": 3})";
  EXPECT_EQ(parse_json(text, "a.json")["a"], 3);
  EXPECT_THAT(message_of<DataError>([&] { parse_json(text, "a.json", {.refuse_equal_keys = true}); }),
              AllOf(HasSubstr("a.json"), HasSubstr("\"a\" is there twice")));
}

// As the header of a mixture of experts: 40,000 objects in one, in far less than the minutes of their square.
TEST(Json, equal_keys_are_looked_for_in_objects_of_many_objects) {
  std::string text = "{";
  for (int i = 0; i < 40000; ++i) text += cat(i == 0 ? "" : ",", "\"", i, "\":{\"a\":[", i, "]}");
  EXPECT_EQ(parse_json(text + "}", "a.json", {.refuse_equal_keys = true}).size(), 40000);
  EXPECT_THAT(
      message_of<DataError>([&] { parse_json(text + R"(,"7":1})", "a.json", {.refuse_equal_keys = true}); }),
      HasSubstr("\"7\" is there twice"));
}

TEST(JsonFields, a_whole_number_lies_in_its_range) {
  const auto read = [](const std::string& text, WholeRange range = {}) {
    return whole_number(parse_json(text, "s.json"), "step", range, "s.json");
  };
  EXPECT_EQ(read(R"({"step": 9223372036854775807})"), 9223372036854775807);
  EXPECT_EQ(read(R"({"step": -3})", {-3, 5}), -3);
  for (const char* value :
       {"-1", "1e30", "1.5", "9223372036854775808", "18446744073709551615", "\"7\"", "true", "[]", "null"}) {
    const auto what = message_of<DataError>([&] { read(cat("{\"step\": ", value, "}")); });
    EXPECT_THAT(what, AllOf(HasSubstr("s.json"), HasSubstr("\"step\""), HasSubstr("expected a whole number")))
        << value;
  }
  EXPECT_THAT(message_of<DataError>([&] { read(R"({"step": 6})", {0, 5}); }), HasSubstr("from 0 to 5"));
}

TEST(JsonFields, each_type_is_checked_and_an_absent_field_takes_the_default_alone_where_one_is_given) {
  const Json json = parse_json(R"({"n": 0.5, "t": "x", "b": true, "o": {}, "l": []})", "s.json");
  EXPECT_EQ(finite_number(json, "n", 0, 1, "s.json"), 0.5);
  EXPECT_EQ(text_value(json, "t", "s.json"), "x");
  EXPECT_TRUE(true_or_false(json, "b", "s.json"));
  EXPECT_TRUE(object_value(json, "o", "s.json").empty());
  EXPECT_TRUE(array_value(json, "l", "s.json").empty());
  EXPECT_EQ(whole_number(json, "absent", {}, "s.json", 7), 7);
  EXPECT_EQ(text_value(json, "absent", "s.json", "y"), "y");
  EXPECT_FALSE(true_or_false(json, "absent", "s.json", false));
  EXPECT_EQ(finite_number(json, "absent", 0, 1, "s.json", 0.25), 0.25);

  EXPECT_THROW(finite_number(json, "n", 0, 0.4, "s.json"), DataError);
  EXPECT_THROW(finite_number(json, "t", 0, 1, "s.json", 0.5), DataError);
  EXPECT_THROW(text_value(json, "n", "s.json", "y"), DataError);
  EXPECT_THROW(true_or_false(json, "n", "s.json"), DataError);
  EXPECT_THROW(object_value(json, "l", "s.json"), DataError);
  EXPECT_THROW(array_value(json, "o", "s.json"), DataError);
  EXPECT_THROW(text_value(json, "absent", "s.json"), DataError);
  EXPECT_THAT(message_of<DataError>([&] { whole_number(Json(3), "step", {}, "s.json"); }),
              AllOf(HasSubstr("s.json"), HasSubstr("expected a JSON object")));
}

TEST(Quotation, a_long_text_is_cut_at_a_whole_character_and_says_its_length) {
  EXPECT_EQ(quotation("short"), "short");
  const std::string cut = quotation(std::string(199, 'a') + std::string(100'000, '\xc3') + "\xa9");
  EXPECT_LT(cut.size(), 300);
  EXPECT_THAT(cut, HasSubstr("(100200 bytes)"));
  std::string accents;
  for (int i = 0; i < 500; ++i) accents += "\xc3\xa9";
  EXPECT_EQ(quotation("x" + accents).substr(0, 199), "x" + accents.substr(0, 198));
  EXPECT_THAT(quotation("x" + accents), HasSubstr("\xc3\xa9... (1001 bytes)"));
}

TEST(Quotation, control_characters_cannot_write_on_the_terminal) {
  EXPECT_EQ(quotation("a\x1b[2Jb\n"), "a\\x1b[2Jb\\x0a");
}

TEST(Json, text_that_is_no_utf_8_is_mended_and_other_text_is_kept) {
  EXPECT_EQ(as_utf8("a\xFF\xC3"), "a\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(as_utf8("\"\xC3\xA4\n"), "\"\xC3\xA4\n");
}

TEST(Quotation, json_is_cut_too_and_wrong_utf_8_is_no_error) {
  EXPECT_LT(quotation(Json(std::string(100'000, 'x'))).size(), 300);
  EXPECT_EQ(quotation(Json("\xff")), "\"\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace trireme
