// `trireme tokenize`: text into a tokenized set.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"
#include "trireme/data/tokenize_corpus.h"

namespace trireme {

struct TokenizeFlags {
  std::string tokenizer;
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;
  CorpusOptions corpus{.field_flag = "--field"};
  bool overwrite = false;
  int64_t threads = 0;

  void declare(OptionList& list);
};

// A set in use would change under its readers, and a set that took hours to make would be lost. Throws ConfigError
// where one of that name is there.
void refuse_to_replace(const std::filesystem::path& output);

int run_tokenize(const std::vector<std::string>& arguments);

}  // namespace trireme
