#include "bench/incumbents/incumbent_time.h"

#include <algorithm>

#include "bench/incumbents/incumbent_step.h"

namespace trireme {

IncumbentTime incumbent_time(const IncumbentRun& run, const HardwareProfile& hardware,
                             double streamed_bytes_per_second, int64_t accumulation) {
  const ModelSizes& model = run.model;
  const auto amount = [](int64_t value) { return static_cast<double>(value); };
  const double tokens = amount(run.rank_tokens()), sample = amount(run.tokens);
  const double query = amount(model.heads * model.head_dim), key = amount(model.kv_heads * model.head_dim);
  const double hidden = amount(model.hidden), layers = amount(model.layers);
  IncumbentTime time;

  const double pair_values = sample * sample / 2 * query / run.sequence_ranks * layers;
  time.attention_seconds = pair_values * (2 * 4 / kFlash2Forward_flops + 10 / kFlash2Backward_flops);

  const double attention_weights = layers * 2 * hidden * (query + key);
  const double mlp_weights = layers * 3 * hidden * amount(model.intermediate);
  const double head_weights = amount(model.vocab) * hidden;
  const double forward_weights =
      2 * attention_weights + (run.policy.tiled_mlp ? 3 : 2) * mlp_weights + head_weights;
  const double weights = attention_weights + mlp_weights + head_weights;
  const Rates& rates = hardware.rates(2);
  const double size = std::min(hidden, key);
  time.products_seconds = 2 * tokens *
                          ((forward_weights + weights) / rates.at(WorkKind::matmul).per_second(size, tokens) +
                           weights / rates.at(WorkKind::weight_gradient).per_second(size, tokens));

  IncumbentTrace trace;
  trace_incumbent_step(run, trace);
  time.token_operations_seconds = 2 * amount(trace.allocated_bytes()) / streamed_bytes_per_second;

  if (run.sequence_ranks > 1) {
    const double sent = amount(run.sequence_ranks - 1) / run.sequence_ranks;
    const double rank_key = std::max(key, amount(run.sequence_ranks * model.head_dim));
    time.exchange_seconds =
        3 * layers * hardware.within_machine.seconds(4, 2 * tokens * (2 * query + 2 * rank_key) * sent);
  }
  if (run.policy.offload_activations)
    time.offload_seconds = 2 * layers * hardware.to_host.seconds(1, 2 * tokens * hidden);
  for (double* of_each : {&time.attention_seconds, &time.products_seconds, &time.token_operations_seconds,
                          &time.exchange_seconds, &time.offload_seconds})
    *of_each *= amount(accumulation);
  if (run.policy.offload_optimizer) {
    const int machine_ranks = std::min(run.ranks, hardware.devices_per_machine);
    time.optimizer_seconds = amount(incumbent_parameters(model)) / run.ranks * machine_ranks /
                             (hardware.host_optimizer_per_second * hardware.devices_per_machine);
  }
  time.seconds = time.attention_seconds + time.products_seconds + time.token_operations_seconds +
                 time.exchange_seconds + time.offload_seconds + time.optimizer_seconds;
  time.tokens_per_second =
      sample * amount(accumulation) * (amount(run.ranks) / run.sequence_ranks) / time.seconds;
  return time;
}

}  // namespace trireme
