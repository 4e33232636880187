// `trireme init`: a fresh model from a preset.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"
#include "trireme/model/rope_override.h"

namespace trireme {

struct InitFlags {
  std::string preset;
  std::filesystem::path out;
  int64_t seed = 0;
  std::string dtype = "float32";
  std::vector<std::filesystem::path> overrides;  // key=value; a list of words
  bool overwrite = false;
  RopeOverride rope;

  void declare(OptionList& list);
};

// Draws the weights by seed and writes a Hugging Face directory. Errors come before the folder is touched.
int run_init(const std::vector<std::string>& arguments);

}  // namespace trireme
