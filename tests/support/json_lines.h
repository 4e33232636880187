// A file of one JSON document a line, such as metrics.jsonl.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme::testing {

inline std::vector<Json> json_lines(const std::filesystem::path& file) {
  std::vector<Json> all;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
  return all;
}

}  // namespace trireme::testing
