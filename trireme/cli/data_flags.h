// The flags that say how text becomes samples, shared by train and eval: both must fill samples alike, or a
// loss says nothing about the other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/cli/option_parser.h"
#include "trireme/train/sample_options.h"

namespace trireme {

struct DataFlags {
  std::filesystem::path file;  // --train_file or --eval_file
  std::string text_field = "text";
  bool no_append_eos = false;
  std::string packing = name_of(Packing::documents);
  double mlm_probability = MaskedTokenOptions{}.probability;
  int64_t mask_token_id = -1;
  int64_t max_seq_length = 1024;

  // `file_flag`, which must be given, names `file`.
  void declare(OptionParser& parser, const std::string& file_flag);
  // After parse. Throws ConfigError.
  SampleOptions samples(const OptionParser& parser) const;
};

}  // namespace trireme
