// The field's words (docs/architecture.md and CONTRIBUTING.md): names that say nothing, or that mean several
// things here, do not come back. Comments and texts are left out, but for the phrases of the last test.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/source_folder.h"

namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// C++ without comments, string and character literals.
std::string code_of(const std::string& text) {
  std::string code;
  for (size_t i = 0; i < text.size();) {
    const std::string two = text.substr(i, 2);
    if (two == "//") {
      i = std::min(text.find('\n', i), text.size());
    } else if (two == "/*") {
      i = std::min(text.find("*/", i), text.size() - 2) + 2;
    } else if (two == "R\"") {
      const size_t open = text.find('(', i);
      const std::string end = ")" + text.substr(i + 2, open - i - 2) + "\"";
      i = std::min(text.find(end, open), text.size() - end.size()) + end.size();
      code += ' ';
    } else if (text[i] == '"' ||
               (text[i] == '\'' && (i == 0 || !std::isalnum(static_cast<unsigned char>(text[i - 1]))))) {
      const char quote = text[i++];
      for (; i < text.size() && text[i] != quote; ++i)
        if (text[i] == '\\') ++i;
      ++i;
      code += ' ';
    } else {
      code += text[i++];
    }
  }
  return code;
}

// "ringPlaces_of" -> ring, places, of.
std::vector<std::string> words_of(const std::string& identifier) {
  std::vector<std::string> words(1);
  for (const char c : identifier) {
    if (c == '_') {
      words.emplace_back();
      continue;
    }
    const bool upper = std::isupper(static_cast<unsigned char>(c)) != 0;
    if (upper && !words.back().empty() && std::islower(static_cast<unsigned char>(words.back().back())) != 0)
      words.emplace_back();
    words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return words;
}

// Nothing, or what is wrong with the name.
std::string fault_of(const std::string& identifier) {
  static const std::set<std::string> kNames = {"at",   "mine", "here",   "seen", "own",
                                               "Call", "Part", "Pieces", "Way",  "Place"};
  if (kNames.count(identifier) > 0) return "say the domain's noun";
  const std::vector<std::string> words = words_of(identifier);
  for (size_t i = 0; i < words.size(); ++i) {
    const bool in_place = i > 0 && words[i - 1] == "in";
    if ((words[i] == "place" || words[i] == "places") && !in_place)
      return "say rank, ring index, slot, offset or position";
    if (words[i] == "walk" || words[i] == "settle") return "say forward and backward pass, executor; choose";
  }
  if (identifier.size() > 5 && identifier.ends_with("Shape"))
    return "a shape is a tensor's: say inputs, partition, config";
  return "";
}

template <typename Body>
void for_files(const std::vector<std::string>& folders, const std::set<std::string>& extensions,
               const Body& body) {
  const fs::path root = trireme::testing::source_folder();
  for (const std::string& folder : folders)
    for (const auto& entry : fs::recursive_directory_iterator(root / folder))
      if (extensions.count(entry.path().extension().string()) > 0 &&
          entry.path().string().find("/history/") == std::string::npos)
        body(fs::relative(entry.path(), root));
}

TEST(Words, names_in_code_are_the_fields) {
  const std::regex identifier("[A-Za-z_][A-Za-z0-9_]*");
  int names = 0;
  for_files({"trireme", "bench"}, {".h", ".cpp", ".cu"}, [&](const fs::path& path) {
    const std::string code = code_of(text_of(trireme::testing::source_folder() / path));
    std::set<std::string> told;
    for (auto match = std::sregex_iterator(code.begin(), code.end(), identifier);
         match != std::sregex_iterator(); ++match) {
      ++names;
      const std::string name = match->str();
      const std::string after = code.substr(match->position() + match->length(), 2);
      // at::Tensor, and the method at(...)
      if (name == "at" && (after == "::" || after.starts_with("("))) continue;
      const std::string fault = fault_of(name);
      if (!fault.empty() && told.insert(name).second) ADD_FAILURE() << path << ": " << name << ": " << fault;
    }
  });
  EXPECT_GT(names, 100000);
}

TEST(Words, the_rule_itself_finds_them) {
  EXPECT_NE(fault_of("ring_place"), "");
  EXPECT_NE(fault_of("RankPlace"), "");
  EXPECT_NE(fault_of("places_"), "");
  EXPECT_NE(fault_of("MemoryShape"), "");
  EXPECT_NE(fault_of("ModelWalk"), "");
  EXPECT_EQ(fault_of("rotate_in_place"), "");
  EXPECT_EQ(fault_of("emplace_back"), "");
  EXPECT_EQ(fault_of("replace"), "");
  EXPECT_EQ(code_of("a // place\nb \"place\" c"), "a \nb   c");
}

TEST(Words, pages_and_comments_call_ranks_and_head_chunks_by_their_names) {
  const std::regex old(
      "ring places?|ulysses places?|head rounds|rounds of heads|attention_output|attention_input|memory "
      "moments",
      std::regex::icase);
  const auto check = [&](const fs::path& path) {
    const std::string text = text_of(trireme::testing::source_folder() / path);
    for (auto match = std::sregex_iterator(text.begin(), text.end(), old); match != std::sregex_iterator();
         ++match)
      ADD_FAILURE() << path << ": " << match->str();
  };
  for_files({"trireme", "bench", "docs"}, {".h", ".cpp", ".cu", ".md"}, check);
  for (const char* page : {"README.md", "CONTRIBUTING.md"}) check(page);
}

}  // namespace
