// Reads every #include under trireme/ and fails on an arrow that points the wrong way: a folder may include
// folders to its left only, and never a sibling.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/source_folder.h"

namespace fs = std::filesystem;

namespace {

const std::map<std::string, int> kRanks = {
    {"base", 0},   {"device", 1},  {"comm", 2},  {"kernels", 2}, {"tokenizer", 1}, {"attention", 3},
    {"memory", 3}, {"data", 3},    {"model", 4}, {"shard", 4},   {"forecast", 5},  {"engine", 6},
    {"plan", 6},   {"measure", 7}, {"eval", 7},  {"train", 8},   {"cli", 9}};

bool allowed(const std::string& from, const std::string& to) {
  if (from == to) return true;
  if (from == "launch") return to == "base";
  if (to == "launch") return from == "cli";
  return kRanks.at(to) < kRanks.at(from);
}

// Folders that must not see torch.
const std::set<std::string> kTorchFree = {"base", "forecast", "launch", "plan", "tokenizer"};

TEST(IncludeDirection, points_only_left) {
  const fs::path root = trireme::testing::source_folder() / "trireme";
  const std::regex ours("^\\s*#include \"trireme/([a-z_]+)/");
  const std::regex torch("^\\s*#include <(ATen|c10|torch)/");
  int seen = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
    const std::string from = fs::relative(entry.path(), root).begin()->string();
    ASSERT_TRUE(from == "launch" || kRanks.count(from)) << "folder " << from << " is not in the design";
    std::ifstream in(entry.path());
    std::smatch match;
    for (std::string line; std::getline(in, line);) {
      if (std::regex_search(line, match, ours)) {
        ++seen;
        const std::string to = match[1];
        ASSERT_TRUE(to == "launch" || kRanks.count(to)) << entry.path() << ": " << line;
        EXPECT_TRUE(allowed(from, to)) << entry.path() << " includes " << line;
      }
      EXPECT_FALSE(line.starts_with("#include \"bench/")) << entry.path() << ": " << line;
      if (kTorchFree.count(from) > 0) {
        EXPECT_FALSE(std::regex_search(line, torch)) << entry.path() << ": " << line;
      }
    }
  }
  EXPECT_GT(seen, 100);
}

TEST(IncludeDirection, the_rule_itself_refuses_wrong_arrows) {
  EXPECT_TRUE(allowed("engine", "model"));
  EXPECT_FALSE(allowed("model", "engine"));
  EXPECT_TRUE(allowed("engine", "forecast"));
  EXPECT_FALSE(allowed("forecast", "engine"));
  EXPECT_FALSE(allowed("model", "shard"));
  EXPECT_FALSE(allowed("attention", "data"));
  EXPECT_TRUE(allowed("cli", "launch"));
  EXPECT_FALSE(allowed("train", "launch"));
  EXPECT_FALSE(allowed("launch", "comm"));
}

}  // namespace
