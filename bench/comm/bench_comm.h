// trireme bench comm: what the exchanges of one layer send and take, method by method, beside their formulas;
// alone, under a launcher, or with --ranks_as_threads. Measurement itself is bench/comm/exchange_rate.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/cli/process_options.h"

namespace trireme {

struct BenchCommFlags {
  std::string model;
  int64_t heads = 8, kv_heads = 4, head_dim = 64;
  int64_t tokens = 2048, batch = 1;
  std::string methods;
  int64_t ulysses = 0, ring = 0;  // of the hybrid; 0: not given
  RingMethod ring_method = RingMethod::ring;
  at::ScalarType dtype = at::kFloat;
  int head_chunks = 1;
  int64_t repeats = 5;
  std::optional<int64_t> ranks_as_threads;
  bool json = false;
  EngineOptions engine;  // device and attention
  ProcessOptions process;

  void declare(OptionList& list);
};

int run_bench_comm(const std::vector<std::string>& arguments);

}  // namespace trireme
