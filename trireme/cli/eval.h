// `trireme eval loss`: held-out loss by position in the context.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/data_flags.h"
#include "trireme/cli/engine_flags.h"

namespace trireme {

// What an evaluation was asked, resolved; the degrees of `engine` need the world (EngineFlags::degrees).
struct EvalOptions {
  std::filesystem::path model_dir;
  EngineOptions engine;
  SampleOptions samples;
};

struct EvalFlags {
  std::string model;
  std::filesystem::path checkpoint;
  double validation_split_percentage = 0;
  int64_t max_eval_samples = 0;
  int64_t buckets = 0;
  bool bf16 = false;
  bool json = false;
  DataFlags data;
  EngineFlags engine;

  void declare(OptionParser& parser);
  // After parse. Throws ConfigError.
  EvalOptions resolve(const OptionParser& parser, const RankPlace& place) const;
};

int run_eval(const std::vector<std::string>& arguments);

}  // namespace trireme
