// `trireme mix`: several tokenized sets as one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"
#include "trireme/data/mix_sets.h"

namespace trireme {

struct MixFlags {
  std::vector<std::filesystem::path> sets;  // PREFIX or PREFIX:WEIGHT
  std::filesystem::path output;
  MixOptions how;
  bool overwrite = false;

  void declare(OptionList& list);
  // Throws ConfigError for a weight that is none, or no set of that name.
  std::vector<SourceOfMix> sources() const;
};

int run_mix(const std::vector<std::string>& arguments);

}  // namespace trireme
