// `trireme bench`: optimizer steps, matrix products (the exchanges of a layer: bench/comm).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/cli/engine_flags.h"
#include "trireme/cli/update_flags.h"
#include "trireme/measure/step_rate.h"

namespace trireme {

struct BenchStepFlags {
  std::string model;
  StepRateOptions measure;
  int64_t seed = 0;
  double weight_decay = 0.01;
  bool json = false;
  bool memory_report = false;
  EngineFlags engine;
  UpdateFlags update;

  void declare(OptionParser& parser);
  // After parse; the degrees need the world. Throws ConfigError.
  EngineOptions resolve(const RankPlace& place) const;
  StepRateOptions resolved_measure() const;
};

struct BenchMatmulFlags {
  double seconds = 0.5;
  bool json = false;
  EngineFlags engine;  // --device and --threads

  void declare(OptionParser& parser);
};

int run_bench(const std::vector<std::string>& arguments);

// What a benchmark's numbers were taken on.
Json benchmarked_machine();

}  // namespace trireme
