#include "trireme/engine/make_forecast_inputs.h"

#include <ATen/Parallel.h>

#include "trireme/forecast/sequence_ranks.h"
#include "trireme/kernels/tile_gemm.h"
#include "trireme/model/model_family.h"

namespace trireme {

ModelSizes model_sizes(const ModelConfig& config, const ModelLayout& layout) {
  ModelSizes sizes{.layers = config.num_hidden_layers,
                   .hidden = config.hidden_size,
                   .intermediate = config.intermediate_size,
                   .mlp_kept_width = config.mlp_kept_width,
                   .heads = config.num_attention_heads,
                   .kv_heads = config.num_key_value_heads,
                   .head_dim = config.head_dim,
                   .vocab = config.vocab_size,
                   .qk_norm = config.qk_norm,
                   .rotates = config.rotates,
                   .tiles = config.family->tiles,
                   .unit_elements = {},
                   .tied = layout.tied,
                   .embedding_read_backward = layout.embedding_read_backward};
  for (const UnitSpec& unit : layout.units) sizes.unit_elements.push_back(unit.elements);
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
  inputs.ranks = mesh.all->size();
  inputs.rank = mesh.all->rank();
  inputs.device_is_host = options.device.is_cpu();
  inputs.zero = static_cast<int>(options.zero);
  inputs.offload = options.offload;
  inputs.update_in_backward = options.update_in_backward;
  inputs.save_in_background = options.save_in_background;
  inputs.tile_tokens = chosen.tile_tokens;
  inputs.logits_tile_tokens = chosen.logits_tile_tokens;
  const auto bytes = [](at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  inputs.storage_bytes = bytes(chosen.storage);
  inputs.tile_bytes = bytes(chosen.tile);
  if (options.device.is_cpu() && inputs.tile_bytes == 2) inputs.product_threads = at::get_num_threads();
  inputs.reduce_bytes = bytes(options.reduce_dtype);
  inputs.state_bytes = bytes(options.optimizer.state_dtype);
  inputs.moments = static_cast<int>(options.optimizer.kind->state_names.size());
  inputs.narrow_kernel = options.device.is_cuda();
  const bool reference = options.attention == AttentionKernel::reference;
  if (options.device.is_cpu() && !reference) inputs.flash_threads = at::get_num_threads();
  inputs.fused_on_gpu = !options.device.is_cpu() && !reference;
  if (chosen.storage == at::kBFloat16 && processor_bf16_units()) inputs.flash_element_bytes = 2;
  return inputs;
}

}  // namespace trireme
