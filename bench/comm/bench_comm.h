// trireme bench comm: what the exchanges of one layer send and take, method by method, beside their formulas;
// alone, under a launcher, or with --ranks_as_threads. Measurement itself is bench/comm/exchange_rate.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/cli/engine_flags.h"

namespace trireme {

struct BenchCommFlags {
  std::string model;
  int64_t heads = 8, kv_heads = 4, head_dim = 64;
  int64_t tokens = 2048, batch = 1;
  std::string methods;
  int64_t ulysses = 0, ring = 0;  // of the hybrid; 0: not given
  std::string ring_method = "ring";
  std::string dtype = "fp32";
  int64_t head_chunks = 1, repeats = 5, ranks_as_threads = 0;
  bool json = false;
  EngineFlags engine;

  void declare(OptionParser& parser);
};

int run_bench_comm(const std::vector<std::string>& arguments);

}  // namespace trireme
