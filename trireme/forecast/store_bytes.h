// Bytes of what the stores hold during a step: parameters, gradients, the optimizer's state, and their sums
// over ranks.
#pragma once

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

// This rank's share of each unit; the whole unit where nothing is sharded.
std::vector<int64_t> rank_shares(const ForecastInputs& inputs);
int64_t sum_of(const std::vector<int64_t>& values);
// The most that `width` neighbours come to.
int64_t largest_run(const std::vector<int64_t>& values, size_t width);

int64_t parameter_bytes(const ForecastInputs& inputs);
int64_t gradient_bytes(const ForecastInputs& inputs);
int64_t optimizer_bytes(const ForecastInputs& inputs);
// Of a checkpoint that is written while training goes on: the states, fp32, of the units that this rank
// writes (train/checkpoint_shard.h). In the host's memory.
int64_t snapshot_bytes(const ForecastInputs& inputs);
// Of the sum of one unit's gradient over ranks.
int64_t sum_buffer_bytes(const ForecastInputs& inputs);
// Of trading the head's new values at its first use after a step (ZeRO 1 and 2), when most activations are
// kept. For other units the sum of their gradients takes more while as much else is held.
int64_t trade_buffer_bytes(const ForecastInputs& inputs);

}  // namespace trireme
