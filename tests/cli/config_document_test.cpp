// Configuration files: what is read of JSON and YAML, and where the message says the fault lies.
#include "trireme/cli/config_document.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme::config_document_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ConfigDocumentFile : public ::testing::Test {
 protected:
  Json read(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return read_config_document(folder_ / name).json;
  }
  std::string refusal(const std::string& name, const std::string& text) const {
    return testing::message_of<DataError>([&] { read(name, text); });
  }

  testing::TemporaryFolder folder_;
};

TEST_F(ConfigDocumentFile, yaml_and_json_of_one_meaning_are_equal) {
  const Json expected = Json::parse(
      R"({"zero": 3, "learning_rate": 2e-5, "bf16": true, "text_field": "yes", "dropout": null,
          "max_seq_length": "16k", "seed": -7, "kwargs": {"min_lr_rate": 0.1}, "more": ["a", 1.5]})");
  EXPECT_EQ(read("a.json", expected.dump()), expected);
  EXPECT_EQ(read("a.yaml",
                 "# a run\nzero: 3\nlearning_rate: 2e-5\nbf16: true\ntext_field: yes\ndropout: null\n"
                 "max_seq_length: 16k\nseed: -7\nkwargs:\n  min_lr_rate: 0.1\nmore: [a, 1.5]\n"),
            expected);
  EXPECT_EQ(read("a.yml", "a: '3'\nb: \"true\"\nc: 1e999\n"),
            (Json{{"a", "3"}, {"b", "true"}, {"c", "1e999"}}));
}

TEST_F(ConfigDocumentFile, a_fault_of_syntax_is_told_with_file_line_and_column) {
  EXPECT_THAT(refusal("a.json", "{\n  \"zero\": 3,\n}\n"),
              AllOf(HasSubstr("a.json"), HasSubstr("line 3, column 1"), HasSubstr("no comma before }")));
  EXPECT_THAT(refusal("a.json", "{\"more\": [1,\n 2, ]}"),
              AllOf(HasSubstr("line 2, column 5"), HasSubstr("no comma before ]")));
  EXPECT_THAT(refusal("a.json", "{\n  // stage\n  \"zero\": 3}"),
              AllOf(HasSubstr("line 2, column 3"), HasSubstr("no comments")));
  EXPECT_THAT(refusal("a.json", "{\"zero\": 3 # all\n}"),
              AllOf(HasSubstr("line 1, column 12"), HasSubstr("no comments")));
  EXPECT_THAT(refusal("a.json", "{'zero': 3}"), HasSubstr("double quotes"));
  for (const char* number : {"NaN", "Infinity", "-Infinity"})
    EXPECT_THAT(refusal("a.json", cat("{\"zero\": ", number, "}")), HasSubstr("JSON has no NaN")) << number;
  EXPECT_THAT(refusal("a.json", "{\"zero\" 3}"), HasSubstr("line 1, column 9"));
  EXPECT_THAT(refusal("a.yaml", "zero: 3\nbf16: [true\n"), AllOf(HasSubstr("a.yaml"), HasSubstr("line ")));
  EXPECT_THAT(refusal("a.json", "[1]"), HasSubstr("expected an object"));
}

TEST_F(ConfigDocumentFile, equal_keys_are_refused_at_every_depth) {
  EXPECT_THAT(refusal("a.json", R"({"zero": 3, "zero": 2})"), HasSubstr("\"zero\" is there twice"));
  EXPECT_THAT(refusal("a.json", R"({"b": [{"c": 1}, {"c": 1, "c": 2}]})"), HasSubstr("\"c\" is there twice"));
  EXPECT_NO_THROW(read("a.json", R"({"b": {"c": 1}, "c": {"c": 2}})"));
  EXPECT_THAT(refusal("a.yaml", "zero: 3\nzero: 2\n"), AllOf(HasSubstr("line 2"), HasSubstr("twice")));
}

TEST_F(ConfigDocumentFile, of_yaml_only_what_json_has_is_read) {
  EXPECT_THAT(refusal("a.yaml", "a: &x 1\nb: *x\n"), AllOf(HasSubstr("line 1"), HasSubstr("anchor")));
  EXPECT_THAT(refusal("a.yaml", "a: !!python/object:os.system 1\n"), HasSubstr("tag"));
  EXPECT_THAT(refusal("a.yaml", "a: 1\n---\nb: 2\n"), HasSubstr("more than one document"));
  EXPECT_THAT(refusal("a.yaml", "a: " + std::string(200, '[')), HasSubstr("deep"));
}

}  // namespace
}  // namespace trireme::config_document_test
