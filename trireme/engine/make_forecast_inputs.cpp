#include "trireme/engine/make_forecast_inputs.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "trireme/comm/backend_library.h"
#include "trireme/forecast/device_kernels.h"
#include "trireme/forecast/sequence_ranks.h"
#include "trireme/kernels/flash4_runner.h"
#include "trireme/kernels/tile_gemm.h"
#include "trireme/model/model_family.h"
#include "trireme/model/rotary.h"

namespace trireme {
namespace {

int64_t causal_tokens_of(const ModelConfig& config) {
  int64_t tokens = 0;
  if (config.causality == Causality::full) return tokens;
  for (const int64_t window : config.layer_window)
    tokens = std::max(tokens, window == 0 ? ModelSizes{}.causal_tokens : window);
  return tokens;
}

std::vector<int64_t> layers_of_keys(const ModelConfig& config) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; config.key_sharing_layers > 0 && layer < config.num_hidden_layers; ++layer)
    layers.push_back(config.layer_of_keys(layer));
  return layers;
}

int64_t turning_width_of(const ModelConfig& config) {
  const int64_t width = turning_width(config.rope, config.head_dim);
  return width < config.head_dim ? width : 0;
}

}  // namespace

ModelSizes model_sizes(const ModelConfig& config, const ModelLayout& layout) {
  ModelSizes sizes{.layers = config.num_hidden_layers,
                   .hidden = config.hidden_size,
                   .intermediate = config.intermediate_size,
                   .experts = config.num_experts,
                   .experts_per_token = config.experts_per_token,
                   .experts_beside_mlp = config.experts_beside_mlp,
                   .shared_intermediate = config.shared_intermediate_size,
                   .mlp_kept_width = config.mlp_kept_width,
                   .heads = config.num_attention_heads,
                   .kv_heads = config.num_key_value_heads,
                   .head_dim = config.head_dim,
                   .gated_attention = config.gated_attention,
                   .turning_width = turning_width_of(config),
                   .full_heads = config.full_heads,
                   .delta_net = config.delta_net,
                   .delta_layers = config.delta_layers,
                   .layers_of_keys = layers_of_keys(config),
                   .sharing_intermediate = config.sharing_intermediate_size,
                   .sharing_mlp_kept_width = config.sharing_mlp_kept_width,
                   .layer_input_width = config.layer_input_width,
                   .vocab = config.vocab_size,
                   .qk_norm = config.qk_norm,
                   .v_norm = config.v_norm,
                   .caps_logits = config.logit_cap > 0,
                   .caps_scores = config.score_cap > 0,
                   .post_norms = config.post_norms,
                   .rotary_tables = !config.rotates      ? 0
                                    : config.window_rope ? 2
                                                         : 1,
                   .most_unscaled_tokens = config.rope.query_scaling
                                               ? config.rope.query_scaling->original_positions
                                               : ModelSizes{}.most_unscaled_tokens,
                   .layer_windows = config.layer_window,
                   .causal_tokens = causal_tokens_of(config),
                   .tiles = config.family->tiles,
                   .tied = layout.tied,
                   .embedding_read_backward = layout.embedding_read_backward};
  for (const UnitSpec& unit : layout.units) sizes.unit_elements.push_back(unit.elements);
  if (!layout.adapted()) return sizes;
  AdapterSizes& adapters = sizes.adapters.emplace();
  adapters.first_unit = layout.adapters.first_unit;
  for (const UnitSpec& unit : layout.adapters.units) adapters.unit_elements.push_back(unit.elements);
  adapters.lora_elements = layout.lora_elements();
  adapters.rank = layout.adapters.rank;
  adapters.trains_output = layout.trains_output();
  return sizes;
}

ForecastInputs make_forecast_inputs(const ModelConfig& config, const ModelLayout& layout,
                                    const EngineOptions& options, const Mesh& mesh,
                                    const ChosenSizes& chosen) {
  ForecastInputs inputs;
  inputs.model = model_sizes(config, layout);
  inputs = with_sequence_ranks(inputs, mesh.ulysses->size(), mesh.ring->size(), mesh.sp->rank());
  inputs.ring_possible = options.sparse.dense();
  inputs.gathers_keys = options.ring_method == RingMethod::gather && inputs.ring > 1;
  inputs.head_chunks = options.head_chunks;
  inputs = with_ranks(std::move(inputs), mesh.all->size(), mesh.all->rank());
  inputs.zero = static_cast<int>(options.zero);
  inputs.offload = options.offload;
  inputs.update_in_backward = options.update_in_backward;
  inputs.save_in_background = options.save_in_background;
  inputs.micro_batches = options.planned_batch.micro_batches;
  inputs.tile_tokens = chosen.tile_tokens;
  inputs.logits_tile_tokens = chosen.logits_tile_tokens;
  const auto bytes = [](at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  inputs.storage_bytes = bytes(chosen.storage);
  inputs.tile_bytes = bytes(chosen.tile);
  inputs.reduce_bytes = bytes(options.reduce_dtype);
  inputs.state_bytes = bytes(options.optimizer.state_dtype);
  inputs.moments = static_cast<int>(options.optimizer.kind->state_names.size());
  return with_device(
      inputs,
      {.on_gpu = !options.device.is_cpu(),
       .cuda = options.device.is_cuda(),
       .threads = at::get_num_threads(),
       .bf16_attention = processor_bf16_units().has_value(),
       .attention = options.attention,
       .flash4 = options.device.is_cuda() && flash4_lacks().empty(),
       .ranks_read_each_other = !mesh.all->is_alone() && ranks_read_each_other(mesh.all->backend()),
       .packed_documents = options.planned_batch.packed},
      options.precision);
}

}  // namespace trireme
