// A diff, applied by the format's own rules, is the edited text.
#include "trireme/plan/unified_diff.h"

#include <sstream>

#include <gtest/gtest.h>

namespace trireme::unified_diff_test {
namespace {

// Lines without their ends; a last line that has none is told by the mark of the format.
std::string applied(const std::string& text, const std::string& diff) {
  std::vector<std::string> lines, result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    lines.push_back(text.substr(at, end - at));
    at = end;
  }
  std::istringstream in(diff);
  std::string line;
  size_t at = 0;
  int old_left = 0, new_left = 0;
  while (std::getline(in, line)) {
    if (line.starts_with("--- ") || line.starts_with("+++ ")) continue;
    if (line.starts_with("\\ No newline")) {
      if (!result.empty() && result.back().ends_with('\n')) result.back().pop_back();
      continue;
    }
    if (line.starts_with("@@")) {
      EXPECT_EQ(old_left, 0);
      EXPECT_EQ(new_left, 0);
      int old_begin = 0, new_begin = 0;
      EXPECT_EQ(
          std::sscanf(line.c_str(), "@@ -%d,%d +%d,%d @@", &old_begin, &old_left, &new_begin, &new_left), 4)
          << line;
      const size_t begin = static_cast<size_t>(old_left > 0 ? old_begin - 1 : old_begin);
      while (at < begin) result.push_back(lines.at(at++));
      EXPECT_EQ(result.size(), static_cast<size_t>(new_left > 0 ? new_begin - 1 : new_begin)) << line;
      continue;
    }
    const std::string body = line.substr(1);
    if (line[0] != '+') {
      const std::string& old = lines.at(at++);
      EXPECT_EQ(old.ends_with('\n') ? old.substr(0, old.size() - 1) : old, body);
      --old_left;
    }
    if (line[0] != '-') {
      result.push_back(body + "\n");
      --new_left;
    }
  }
  EXPECT_EQ(old_left, 0);
  EXPECT_EQ(new_left, 0);
  while (at < lines.size()) result.push_back(lines.at(at++));
  std::string all;
  for (const std::string& each : result) all += each;
  return all;
}

TEST(UnifiedDiff, applied_is_the_edited_text) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "line " + std::to_string(i) + "\n";
  const size_t third = text.find("line 3\n"), last = text.find("line 39"), middle = text.find("line 20");
  const std::vector<std::vector<TextEdit>> cases{
      {{third, third + 6, "changed"}},
      {{third, third, "inserted\n"}, {third + 5, third + 6, "three"}},
      {{0, 0, "first\n"}, {last, last + 7, "end"}},
      {{middle, middle + 8, ""}},
      {{middle, middle, "a\nb\nc\n"}, {middle + 30, middle + 31, "X"}, {middle + 100, middle + 100, "far"}},
      {{third + 4, middle + 4, " to "}},
      {{text.size() - 1, text.size(), ""}},
  };
  for (const auto& edits : cases) {
    const std::string edited = with_edits(text, edits), diff = unified_diff("a.py", text, edits);
    EXPECT_NE(edited, text);
    EXPECT_EQ(applied(text, diff), edited) << diff;
  }
  const std::string no_end = "one\ntwo";
  EXPECT_EQ(applied(no_end, unified_diff("a", no_end, {{0, 3, "1"}})), "1\ntwo");
}

TEST(UnifiedDiff, of_no_change_is_empty) {
  EXPECT_EQ(unified_diff("a", "one\n", {}), "");
  EXPECT_EQ(unified_diff("a", "one\n", {{0, 3, "one"}}), "");
}

TEST(UnifiedDiff, has_three_lines_of_context) {
  EXPECT_EQ(unified_diff("a.py", "1\n2\n3\n4\n5\n6\n7\n8\n9\n", {{8, 9, "five"}}),
            "--- a/a.py\n+++ b/a.py\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
}

}  // namespace
}  // namespace trireme::unified_diff_test
