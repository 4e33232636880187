// `trireme bench`: optimizer steps, matrix products (the exchanges of a layer: bench/comm; a hardware
// profile: bench_hardware.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/cli/process_options.h"
#include "trireme/measure/step_rate.h"

namespace trireme {

struct BenchStepFlags {
  std::string model;
  StepRateOptions measure;
  bool json = false;
  bool memory_report = false;
  std::filesystem::path predict;  // a hardware profile or its name; empty: nothing is predicted
  std::optional<int64_t> simulate_ranks;
  EngineOptions engine = {.optimizer = {.weight_decay = 0.01}};
  ProcessOptions process;

  void declare(OptionList& list);
  // After parse; the degrees need the world. Throws ConfigError.
  EngineOptions resolve(const RankIdentity& identity) const;
};

struct BenchMatmulFlags {
  double seconds = 0.5;
  bool json = false;
  ProcessOptions process;  // --device and --threads

  void declare(OptionList& list);
};

int run_bench(const std::vector<std::string>& arguments);

// What a benchmark's numbers were taken on.
Json benchmarked_machine();

}  // namespace trireme
