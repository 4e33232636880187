// `trireme eval loss`: held-out loss by position in the context.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/process_options.h"
#include "trireme/train/sample_options.h"

namespace trireme {

// What an evaluation was asked, resolved; the degrees of `engine` need the world
// (ProcessOptions::share_sequence).
struct EvalOptions {
  std::filesystem::path model_dir;
  EngineOptions engine;
  SampleOptions samples;
};

struct EvalFlags {
  std::string model;
  std::filesystem::path checkpoint;
  std::filesystem::path eval_file;
  double validation_split_percentage = 0;
  int64_t max_eval_samples = 0;
  int64_t buckets = 0;
  bool json = false;
  SampleOptions samples;
  EngineOptions engine = {.purpose = Purpose::evaluation};
  ProcessOptions process;

  void declare(OptionList& list);
  // After parse. Throws ConfigError.
  EvalOptions resolve(const RankIdentity& identity) const;
};

int run_eval(const std::vector<std::string>& arguments);

}  // namespace trireme
