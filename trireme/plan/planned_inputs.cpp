#include "trireme/plan/planned_inputs.h"

#include <tuple>

#include "trireme/attention/delta_heads.h"
#include "trireme/attention/head_shares.h"
#include "trireme/forecast/device_kernels.h"
#include "trireme/forecast/sequence_ranks.h"

namespace trireme {

ForecastInputs planned_inputs(const PlanRequest& request, const Configuration& configuration, int64_t tokens,
                              int sp_rank) {
  const RunSettings& settings = request.settings;
  const HardwareProfile& hardware = request.hardware;
  ForecastInputs inputs;
  inputs.model = request.model;
  inputs.batch = configuration.batch;
  inputs.tokens = tokens;
  inputs.document_tokens = request.document_tokens;
  inputs = with_sequence_ranks(std::move(inputs), configuration.ulysses, configuration.ring, sp_rank);
  inputs.ring_possible = settings.ring_possible;
  inputs.gathers_keys = settings.gathers_keys && configuration.ring > 1;
  inputs.head_chunks = configuration.head_chunks;
  inputs = with_ranks(std::move(inputs), configuration.ranks(), sp_rank);
  if (hardware.peer_buffers_bytes > 0) {  // of GPUs
    inputs.peer_buffers_bytes = hardware.peer_buffers_bytes;
    inputs.machine_ranks = hardware.devices_per_machine;
  }
  inputs.micro_batches = configuration.accumulation;
  inputs.zero = configuration.zero;
  inputs.recompute = configuration.recompute;
  inputs.recompute.layers = request.model.layers;
  inputs.offload = configuration.offload;
  inputs.update_in_backward = settings.update_in_backward;
  inputs.save_in_background = settings.save_in_background;
  inputs.tile_tokens = configuration.tile_tokens;
  inputs.logits_tile_tokens = configuration.logits_tile_tokens;
  inputs.storage_bytes = storage_bytes_of(settings.precision);
  const bool narrow =
      multiplies_16_bit(settings.precision, Bf16Matmul::automatic, hardware.is_gpu, hardware.bf16_products);
  inputs.tile_bytes = narrow ? inputs.storage_bytes : kFloat_bytes;
  inputs.reduce_bytes = settings.reduce_bytes;
  inputs.state_bytes = settings.state_bytes;
  inputs.moments = settings.moments;
  return with_device(std::move(inputs),
                     {.on_gpu = hardware.is_gpu,
                      .cuda = hardware.is_gpu,
                      .threads = hardware.threads,
                      .bf16_attention = hardware.bf16_attention,
                      .attention = settings.attention,
                      .flash4 = hardware.flash4,
                      // Where the kernel forbids it (--ddp_backend), a rank needs the others' blocks as well.
                      .ranks_read_each_other = !hardware.is_gpu && configuration.ranks() > 1 &&
                                               configuration.ranks() <= hardware.devices_per_machine,
                      .packed_documents = true},  // what train does unless it is told
                     settings.precision);
}

int fullest_sequence_rank(const ModelSizes& model, const Configuration& configuration) {
  const HeadShares heads = share_heads(model.heads, model.kv_heads, configuration.ulysses);
  // Query heads are shared alike in all layers.
  const HeadShares full = model.full_heads ? share_heads(model.full_heads->query, model.full_heads->key_value,
                                                         configuration.ulysses)
                                           : heads;
  int fullest = 0;
  // Most layers of a model with DeltaNets have one, of whose heads the last ranks have more.
  const int ranks = configuration.ulysses * configuration.ring;
  const auto size = [&](int rank) {
    const auto at_rank = static_cast<size_t>(rank % configuration.ulysses);
    const DeltaHeads delta = model.delta_net ? model.delta_net->heads : DeltaHeads{};
    return std::tuple(model.delta_net ? delta_share(delta, rank, ranks).columns(delta) : 0,
                      heads.query[at_rank].size(), heads.key_value[at_rank].size(),
                      full.key_value[at_rank].size());
  };
  for (int rank = 1; rank < ranks; ++rank)
    if (size(rank) > size(fullest)) fullest = rank;
  return fullest;
}

PlannedStep planned_step(const PlanRequest& request, const Configuration& configuration, int64_t tokens) {
  PlannedStep step;
  step.inputs =
      planned_inputs(request, configuration, tokens, fullest_sequence_rank(request.model, configuration));
  step.attention_pairs = request.pairs_of_sample(tokens);
  if (request.document_tokens < tokens) step.document_tokens = static_cast<double>(request.document_tokens);
  return step;
}

bool host_can_step(const ForecastInputs& inputs, const HardwareProfile& hardware) {
  const bool keeps_something = inputs.moments > 0 || inputs.tile_bytes < kFloat_bytes;
  return keeps_something && hardware.host_optimizer_per_second > 0;
}

}  // namespace trireme
