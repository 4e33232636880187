// The rules of the tree that a machine can check: length of files and names that say nothing.
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/source_folder.h"

namespace fs = std::filesystem;

namespace {

template <typename F>
void for_sources(const F& body) {
  for (const char* folder : {"trireme", "tests", "bench", "python", "tools"}) {
    const fs::path root = trireme::testing::source_folder() / folder;
    if (!fs::exists(root)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const std::string extension = entry.path().extension();
      if (extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".py")
        body(entry.path());
    }
  }
}

TEST(HouseRules, no_file_is_longer_than_600_lines) {
  for_sources([](const fs::path& path) {
    std::ifstream in(path);
    int lines = 0;
    for (std::string line; std::getline(in, line);) ++lines;
    EXPECT_LE(lines, 600) << path;
  });
}

TEST(HouseRules, names_say_what_a_file_is) {
  const std::regex empty_name("(^|_)(utils?|common|misc|helpers?|manager)(_|\\.|$)");
  for_sources([&](const fs::path& path) {
    // Gloo's own headers ask for these paths.
    if (path.string().find("gloo_declarations") != std::string::npos) return;
    EXPECT_FALSE(std::regex_search(path.filename().string(), empty_name)) << path;
    EXPECT_FALSE(std::regex_search(path.parent_path().filename().string(), empty_name)) << path;
  });
}

// A base is deleted through its pointer, so it is one object that others hold: a copy would be half of it.
// A deleted move assignment leaves a class without any copy or move.
TEST(HouseRules, bases_with_virtual_methods_are_not_copyable) {
  const std::regex base("virtual ~(\\w+)\\(\\)");
  for_sources([&](const fs::path& path) {
    if (path.string().find("gloo_declarations") != std::string::npos) return;
    std::ifstream in(path);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    for (std::sregex_iterator match(text.begin(), text.end(), base), end; match != end; ++match) {
      const std::string name = (*match)[1];
      EXPECT_NE(text.find(name + "& operator=(" + name + "&&) = delete;"), std::string::npos)
          << path << ": " << name;
    }
  });
}

TEST(HouseRules, tests_find_the_sources_by_source_folder_alone) {
  const std::string built_in = std::string("TRIREME_SOURCE") + "_DIR";
  for_sources([&](const fs::path& path) {
    if (path.extension() != ".cpp") return;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);)
      EXPECT_EQ(line.find(built_in), std::string::npos) << path << ": " << line;
  });
}

// base/json.h has the limits of depth, size and numbers, and names the file.
TEST(HouseRules, json_is_parsed_by_one_reader) {
  const std::regex parse("[jJ]son::(parse|accept|sax_parse|from_)\\b");
  for_sources([&](const fs::path& path) {
    const fs::path relative = path.lexically_relative(trireme::testing::source_folder());
    if (*relative.begin() != "trireme" || relative == "trireme/base/json.cpp") return;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);)
      EXPECT_FALSE(std::regex_search(line, parse))
          << relative << ": " << line << "\n  use parse_json or read_json";
  });
}

}  // namespace
