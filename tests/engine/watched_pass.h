// One forward and backward of a model on ranks as threads, over stores of this file's own that watch the
// executor: values given back too early are NaN, and the stores' rules are expectations.
#pragma once

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/forecast/recompute_plan.h"

namespace trireme::testing {

struct WatchedRun {
  int ranks = 1;
  at::ScalarType storage = at::kFloat;
  at::ScalarType compute = at::kFloat;
  int64_t batch = 2;
  int64_t tokens = 41;  // S
  int64_t tile_tokens = 16;
  int head_chunks = 1;
};

// What one rank saw.
struct PassRecord {
  double loss_sum = 0;
  std::vector<at::Tensor> gradients;  // flat, of each unit, not summed over ranks
  int64_t exchanges = 0;              // all-to-alls, forward and backward
  int64_t attention_forwards = 0;
  int64_t kept_bytes = 0;  // most that the activation store held
  int64_t gathers = 0;     // of a unit's parameters
  int64_t prefetches = 0;
  // Of each weight matrix (unit, bytes from its start), how often it was multiplied forward: tokens that it
  // met / tokens of this rank.
  std::map<std::pair<int, int64_t>, double> forward_products;
};

// The model of config.json and weights in `folder`. One record a rank.
std::vector<PassRecord> run_pass(const std::filesystem::path& folder, const WatchedRun& run,
                                 const RecomputePlan& plan);

}  // namespace trireme::testing
