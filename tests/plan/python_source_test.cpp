// What is read from Python's text without Python.
#include "trireme/plan/python_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace trireme::python_source_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json value_of(const std::string& expression, const std::string& before = "") {
  const PythonSource source = read_python_source(before + "f(x=" + expression + ")\n", "a.py");
  const auto call = std::ranges::find(source.calls, "f", &PythonCall::callee);
  const auto& value = call->arguments.at(0).value;
  return value ? *value : Json("not known");
}

TEST(PythonSource, may_begin_with_a_byte_order_mark) {
  const PythonSource source = read_python_source("\xEF\xBB\xBFimport trl\nf()\n", "train.py");
  EXPECT_EQ(source.resolved("trl.SFTTrainer"), "trl.SFTTrainer");
  EXPECT_EQ(source.line_of(source.calls.at(0).begin), 2);
}

TEST(PythonSource, literals_have_their_values) {
  const std::vector<std::pair<std::string, Json>> cases{
      {"12", 12},        {"-3", -3},   {"1_000", 1000},      {"2e-5", 2e-5}, {"5.", 5.0},
      {"1.e-5", 1e-5},   {".5", 0.5},  {"16 * 1024", 16384}, {"True", true}, {"False", false},
      {"None", Json()},  {"'a'", "a"}, {"\"a'b\"", "a'b"},   {"r'a'", "a"},  {"\"\"\"a\nb\"\"\"", "a\nb"},
      {"'a' 'b'", "ab"}, {"''", ""},
  };
  for (const auto& [text, value] : cases) EXPECT_EQ(value_of(text), value) << text;
  for (const char* text : {"f'a{b}'", "b", "1 + 1", "args.x", "'a\\n'", "[1]", "0x10", "len('a')",
                           "9223372036854775807 * 2", "1 if a else 2", "- -5", "-'a'"})
    EXPECT_EQ(value_of(text), "not known") << text;
  EXPECT_EQ(value_of("-A", "A = -4611686018427387904 * 2\n"), "not known");
  EXPECT_EQ(value_of(std::string(1 << 20, '-') + "5"), "not known");
}

TEST(PythonSource, constants_that_are_given_once_count) {
  EXPECT_EQ(value_of("A", "A = 5\n"), 5);
  EXPECT_EQ(value_of("A * 1024", "A = 4  # k\n"), 4096);
  for (const char* before :
       {"A = 5\nA = 6\n", "A = 5\nA += 1\n", "A = 5\nA <<= 1\n", "A = 5\nfor A in b:\n  pass\n",
        "A = 5\nA, b = c\n", "A: int = 5\n", "A = g()\n", "A = 5\ndef h(A):\n  pass\n",
        "def h(A=5):\n  pass\n", "# A = 5\n", "'''\nA = 5\n'''\n"})
    EXPECT_EQ(value_of("A", before), "not known") << before;
}

TEST(PythonSource, names_resolve_to_what_was_imported) {
  const PythonSource source = read_python_source(
      "import trl\nimport transformers as tf, os.path\nfrom trl import (SFTTrainer as T,  # a comment\n    "
      "DPOTrainer)\n"
      "from trl.trainer.sft_trainer import SFTTrainer\nclass Mine(T):\n  pass\nclass Other(Mine, Mixin): "
      "pass\nif a:\n    from b import C; x = 1\n"
      "from .local import D\n",
      "a.py");
  EXPECT_EQ(source.resolved("trl.SFTTrainer"), "trl.SFTTrainer");
  EXPECT_EQ(source.resolved("trl.trainer.DPOTrainer"), "trl.DPOTrainer");
  EXPECT_EQ(source.resolved("tf.Trainer"), "transformers.Trainer");
  EXPECT_EQ(source.resolved("T"), "trl.SFTTrainer");
  EXPECT_EQ(source.resolved("DPOTrainer"), "trl.DPOTrainer");
  EXPECT_EQ(source.resolved("SFTTrainer"), "trl.SFTTrainer");
  EXPECT_EQ(source.resolved("Other"), "trl.SFTTrainer");
  EXPECT_EQ(source.resolved("C"), "b.C");
  EXPECT_EQ(source.resolved("Nothing"), "");
  const PythonImport& import = source.imports.at("T");
  EXPECT_EQ(source.text.substr(import.statement_begin, import.statement_end - import.statement_begin),
            "from trl import (SFTTrainer as T,  # a comment\n    DPOTrainer)");
}

TEST(PythonSource, classes_in_a_circle_resolve_to_nothing) {
  EXPECT_EQ(read_python_source("class A(B): pass\nclass B(A): pass\n", "a.py").resolved("A"), "");
}

TEST(PythonSource, calls_have_their_arguments) {
  const PythonSource source = read_python_source(
      "# f(1)\n'g(2)'\ndef h(a=1):\n  return x.y(a, b=[1, (2, 3)], **c)  # k(l)\n\nout = "
      "Model.from_pretrained(\n  \"name\",  # one, two\n  z={'q': 1},\n)\n"
      "chain().then(3)\nclass K(L): pass\n",
      "a.py");
  std::vector<std::string> callees;
  for (const PythonCall& call : source.calls) callees.push_back(call.callee);
  EXPECT_THAT(callees, ElementsAre("x.y", "Model.from_pretrained", "chain", ".then"));
  const PythonCall& first = source.calls[0];
  ASSERT_EQ(first.arguments.size(), 3);
  EXPECT_EQ(first.arguments[1].keyword, "b");
  EXPECT_EQ(first.arguments[1].written, "[1, (2, 3)]");
  EXPECT_EQ(first.arguments[2].written, "**c");
  const PythonCall& model = source.calls[1];
  EXPECT_EQ(model.arguments[0].value, Json("name"));
  EXPECT_EQ(model.find("z")->written, "{'q': 1}");
  EXPECT_EQ(model.find("name"), nullptr);
  EXPECT_EQ(source.line_of(model.begin), 6);
}

TEST(PythonSource, attributes_belong_to_the_last_call_that_made_the_name) {
  const PythonSource source = read_python_source(
      "a.x = 1\na = f(x=2)\nb: F = f()\nb.x = 3\nif c:\n  a.x = 4\na.y = 5; a.z == 6\na = f()\na.x, d = 7, "
      "8\n",
      "a.py");
  const auto x = [&](size_t call) { return source.calls.at(call).find("x"); };
  ASSERT_EQ(source.calls.size(), 3U);
  EXPECT_EQ(x(0)->written, "4");
  EXPECT_EQ(x(0)->value, std::nullopt);
  EXPECT_EQ(source.calls.at(0).find("y")->value, Json(5));
  EXPECT_EQ(source.calls.at(0).find("z"), nullptr);
  EXPECT_EQ(x(1)->value, Json(3));
  EXPECT_EQ(source.calls.at(1).names, std::vector<std::string>{"b"});
  EXPECT_EQ(x(2)->value, std::nullopt);
}

TEST(PythonSource, calls_have_each_of_the_names_that_they_are_given) {
  const PythonSource source = read_python_source(
      "self.a = f(1)\nb[\"c\"] = d = f(2)\nif e: self.a.x = 1\nelse: d.x = 2\nd.y = 3\n", "a.py");
  EXPECT_EQ(source.calls.at(0).names, std::vector<std::string>{"self.a"});
  EXPECT_EQ(source.calls.at(1).names, (std::vector<std::string>{"b[\"c\"]", "d"}));
  for (const size_t call : {0, 1}) {
    ASSERT_NE(source.calls.at(call).find("x"), nullptr);
    EXPECT_EQ(source.calls.at(call).find("x")->value, std::nullopt) << "under a condition";
  }
  EXPECT_EQ(source.calls.at(1).find("y")->value, Json(3));
}

TEST(PythonSource, an_attribute_is_no_constant) {
  EXPECT_EQ(value_of("A", "A = 5\nb.A = 6\n"), 5);
}

TEST(PythonSource, refuses_what_is_no_python_by_its_line) {
  const auto refusal = [](const std::string& text) {
    return testing::message_of<DataError>([&] { read_python_source(text, "a.py"); });
  };
  EXPECT_THAT(refusal("a\nb = 'c\n"), HasSubstr("a.py: line 2 has a string without its end"));
  EXPECT_THAT(refusal("a(\nb\n"), HasSubstr("line 1 has a bracket without its end"));
  EXPECT_THAT(refusal("a\n)"), HasSubstr("line 2 has a bracket that closes nothing"));
  EXPECT_EQ(refusal(std::string(200, '(') + std::string(200, ')')), "no error");
  EXPECT_THAT(refusal(std::string(201, '(') + std::string(201, ')')), HasSubstr("more than 200 brackets"));
}

// Whatever the bytes, reading ends, with a source or a DataError.
TEST(PythonSource, bytes_cut_anywhere_are_read_or_refused) {
  const std::string text =
      "from a import (b,\n c)\nX = '''q''' \\\n  'r'\nclass D(b.c): pass\nf(x, *y, z=1_0e-5, "
      "**w)(2)\nimport\nfrom . import\nimport a as\n'\xff\\";
  for (size_t begin = 0; begin < text.size(); ++begin)
    for (size_t end = begin; end <= text.size(); ++end) {
      try {
        read_python_source(text.substr(begin, end - begin), "a.py");
      } catch (const DataError&) {
      }
    }
}

}  // namespace
}  // namespace trireme::python_source_test
