// `trireme config`: what a DeepSpeed configuration becomes (show), and one whose numbers contradict each
// other mended (fix).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"

namespace trireme {

struct ConfigFlags {
  std::optional<int64_t> ranks;
  std::filesystem::path output;  // of fix; empty: NAME.fixed.json beside the file
  bool overwrite = false;

  void declare(OptionList& list);
};

struct MendedText {
  std::string text;
  std::vector<std::string> changes;  // "train_batch_size: 1 -> 16 (...)"
};
// The text with other numbers where they contradict each other, and nothing else changed. Without `ranks`,
// train_batch_size becomes "auto", which follows from the ranks of each run.
MendedText mend_deepspeed_text(const std::string& text, const std::string& file,
                               std::optional<int64_t> ranks);

int run_config(const std::vector<std::string>& arguments);

}  // namespace trireme
