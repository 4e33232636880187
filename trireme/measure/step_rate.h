// Measures the time of a training step: runs some steps of a real engine, on synthetic tokens
// (measure/synthetic_tokens.h) or on those that the caller hands over. A step lasts as long as its slowest
// rank; all ranks start it together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/engine/engine.h"

namespace trireme {

struct StepRateOptions {
  int64_t sequence_tokens = 2048;  // S, 2 or more
  int64_t batch = 1;               // samples of each data-parallel group
  int64_t steps = 6;               // all, warm-up included
  int64_t warmup = 2;              // left out of the medians
  uint64_t seed = 0;
  double learning_rate = 1e-3;
  double matmul_seconds = 0.25;  // spent on each shape of the matmul rate; 0: it is not measured
};

struct StepRate {
  std::vector<double> step_seconds;  // of the slowest rank
  std::vector<double> losses;        // mean cross entropy of each step, before its update
  std::vector<double> gradient_norms;
  double median_step_seconds = 0;                // warm-up left out
  double tokens_per_second = 0;                  // over all ranks
  double model_flops_per_step = 0;               // over all ranks
  double matmul_fp32_flops_per_second = 0;       // all ranks at once, of the mean time beside the steps
  double matmul_precision_flops_per_second = 0;  // the same in the dtype in which the run multiplies
  double published_flops_per_second = 0;         // of all ranks' GPUs, by their makers; 0: one is unknown
  double exchange_seconds = 0;  // in a measured step's collectives, of the rank that waited longest
  double data_seconds = 0;      // in a measured step, until its tokens were there
  double offload_seconds = 0;  // that forward and backward waited for what is offloaded (on the host's clock)
  int64_t sent_bytes = 0;      // in a measured step, by the rank that sent most
  double cpu_seconds_per_step = 0;  // processor time of all ranks; says more than the clock on a busy machine
  std::vector<int64_t> peak_memory_bytes;  // of each rank: resident on the CPU, allocated on a GPU

  // Model FLOP/s over the faster of the two matmul rates: bf16 values can be multiplied in fp32 as well.
  double matmul_share() const;
  // Model FLOP/s over the published rate; nullopt where that is unknown.
  std::optional<double> mfu() const;
  // The names that bench/peers prints: step_s, median_step_s, tokens_per_s, model_gflops, ...
  Json to_json() const;
};

// The steps, from 0.
struct MeasuredSteps {
  std::function<StepBatches(int64_t step)> batches;
  std::function<double(int64_t step)> learning_rate;
  std::function<void(const StepResult& result)> on_step = {};
};

// Of synthetic tokens, for a living engine.
MeasuredSteps synthetic_steps(Engine& engine, const StepRateOptions& options);

// Collective over the whole run; every rank gets the same result. The steps train the engine and change its
// weights. Throws ConfigError when no step is left after the warm-up, and what Engine::train_step throws.
StepRate measure_step_rate(Engine& engine, const StepRateOptions& options);
// The same of the caller's steps: of `options` steps, warmup and matmul_seconds count.
StepRate measure_step_rate(Engine& engine, const StepRateOptions& options, const MeasuredSteps& measured);

}  // namespace trireme
