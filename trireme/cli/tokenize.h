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
  std::string field = CorpusOptions{}.field;
  OnBadRecord on_bad_record = CorpusOptions{}.on_bad_record;
  bool no_append_eos = false;
  bool overwrite = false;
  int64_t threads = 0;

  void declare(OptionList& list);
  CorpusOptions corpus() const;
};

int run_tokenize(const std::vector<std::string>& arguments);

}  // namespace trireme
