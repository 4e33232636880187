#include "trireme/engine/memory_shape.h"

#include <algorithm>
#include <functional>

#include <ATen/Parallel.h>

#include "trireme/attention/tile_gemm.h"
#include "trireme/base/error.h"
#include "trireme/base/sample_layout.h"

namespace trireme {

ModelExtents model_extents(const ModelConfig& config) {
  ModelExtents model;
  model.layers = config.num_hidden_layers;
  model.hidden = config.hidden_size;
  model.intermediate = config.intermediate_size;
  model.heads = config.num_attention_heads;
  model.kv_heads = config.num_key_value_heads;
  model.head_dim = config.head_dim;
  model.vocab = config.vocab_size;
  model.tied = config.tie_word_embeddings;
  model.qkv_bias = config.qkv_bias;
  model.output_bias = config.output_bias;
  model.mlp_bias = config.mlp_bias;
  model.qk_norm = config.qk_norm;
  model.encoder = config.family == ModelFamily::bert;
  if (model.encoder) {
    model.positions = config.max_position_embeddings;
    model.token_types = config.type_vocab_size;
  }
  return model;
}

MemoryShape memory_shape(const ModelConfig& config, const EngineOptions& options, const Mesh& mesh,
                         const ChosenSizes& chosen) {
  MemoryShape shape;
  shape.model = model_extents(config);
  shape.ulysses = mesh.ulysses->size();
  const HeadShares heads =
      share_heads(config.num_attention_heads, config.num_key_value_heads, mesh.ulysses->size());
  const auto here = static_cast<size_t>(mesh.ulysses->rank());
  shape.heads_begin = heads.query[here].begin;
  shape.heads_here = heads.query[here].size();
  shape.kv_heads_here = heads.key_value[here].size();
  for (size_t rank = 0; rank < heads.query.size(); ++rank)
    shape.packed_heads += heads.query[rank].size() + 2 * heads.key_value[rank].size();
  shape.ring = mesh.ring->size();
  shape.sp_rank = mesh.sp->rank();
  shape.gathers_keys = options.ring_method == RingMethod::gather && shape.ring > 1;
  shape.head_chunks = options.head_chunks;
  shape.ranks = mesh.all->size();
  shape.rank = mesh.all->rank();
  shape.device_is_host = options.device.is_cpu();
  shape.zero = static_cast<int>(options.zero);
  shape.offload = options.offload;
  shape.update_in_backward = options.update_in_backward;
  shape.tile_tokens = chosen.tile_tokens;
  shape.logits_tile_tokens = chosen.logits_tile_tokens;
  const auto bytes = [](at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  shape.storage_bytes = bytes(chosen.storage);
  shape.tile_bytes = bytes(chosen.tile);
  if (options.device.is_cpu() && shape.tile_bytes == 2) shape.product_threads = at::get_num_threads();
  shape.reduce_bytes = bytes(options.reduce_dtype);
  shape.state_bytes = bytes(options.optimizer.state_dtype);
  shape.moments = options.optimizer.kind == OptimizerKind::adamw ? 2 : 0;
  shape.narrow_kernel = options.device.is_cuda();
  const bool reference = options.attention == AttentionKernel::reference;
  if (options.device.is_cpu() && !reference) shape.attention_threads = at::get_num_threads();
  shape.fused_on_gpu = !options.device.is_cpu() && !reference;
  if (chosen.storage == at::kBFloat16 && processor_bf16_units()) shape.attention_element_bytes = 2;
  return shape;
}

MemoryShape with_batch(MemoryShape shape, int64_t batch, int64_t tokens) {
  shape.batch = batch;
  shape.tokens = tokens;
  const SampleLayout layout{tokens, shape.ulysses, shape.ring};
  shape.shard_tokens = layout.size(shape.sp_rank);
  shape.local_tokens = layout.ring_tokens(layout.ring_place(shape.sp_rank));
  return shape;
}

std::vector<MemoryOption> memory_options(const MemoryShape& shape) {
  using enum MemoryCategory;
  const MemoryForecast now = memory_forecast(shape);
  std::vector<MemoryOption> options;
  const auto propose = [&](const std::string& option, MemoryCategory category,
                           const std::function<void(MemoryShape&)>& change) {
    MemoryShape changed = shape;
    change(changed);
    const MemoryForecast then = memory_forecast(changed);
    for (const MemorySpace space : {MemorySpace::device, MemorySpace::host}) {
      const auto bytes_of = [&](const MemoryForecast& forecast) {
        return (space == MemorySpace::host ? forecast.host : forecast.peak)[category];
      };
      const int64_t before = bytes_of(now), after = bytes_of(then);
      if (before > after)
        options.push_back({option, category,
                           static_cast<double>(before - after) / static_cast<double>(before), before, space});
    }
  };
  // Beside a GPU there is the host before the disk.
  const auto next_place = [&](Offload place) {
    return place == Offload::none && !shape.device_is_host ? Offload::cpu : Offload::disk;
  };
  const auto halved_sequence = [](MemoryShape& s) {
    s = with_batch(s, s.batch, std::max<int64_t>(1, s.tokens / 2));
  };

  // Tokens: what no other option makes smaller.
  const std::string shorter = cat("--max_seq_length ", std::max<int64_t>(1, shape.tokens / 2));
  propose(shorter, activations, halved_sequence);
  propose(shorter, attention, halved_sequence);
  propose(shorter, communication, halved_sequence);
  if (shape.batch > 1 && !shape.update_in_backward)
    propose("a batch of 1 with --gradient_accumulation_steps", activations,
            [](MemoryShape& s) { s.batch = 1; });

  const RecomputePlan& plan = shape.recompute;
  constexpr Recompute full = Recompute::full, keep_attention = Recompute::keep_attention;
  if (plan.policy != full) {
    const auto with_policy = [&](Recompute policy) {
      return [policy](MemoryShape& s) {
        s.recompute.policy = policy;
        s.recompute.keep_fraction = 1;
      };
    };
    propose("--recompute full", activations, with_policy(full));
    if (plan.policy != keep_attention)
      propose("--recompute keep_attention", activations, with_policy(keep_attention));
    if (plan.keep_fraction > 0.5)
      propose(cat("--recompute ", name_of(plan.policy), " --keep_fraction 0.5"), activations,
              [](MemoryShape& s) { s.recompute.keep_fraction = 0.5; });
  }
  for (const int64_t every : {2, 4})
    if (every > plan.checkpoint_every && every <= plan.layers &&
        (plan.policy == full || plan.policy == keep_attention))
      propose(cat("--checkpoint_every ", every), activations,
              [every](MemoryShape& s) { s.recompute.checkpoint_every = every; });
  if (shape.offload.activations != Offload::disk && plan.policy != Recompute::none)
    propose(cat("--offload_activations ", name_of(next_place(shape.offload.activations))), activations,
            [&](MemoryShape& s) { s.offload.activations = next_place(s.offload.activations); });

  if (shape.offload.optimizer != Offload::disk)
    propose(cat("--offload_optimizer ", name_of(next_place(shape.offload.optimizer))), optimizer,
            [&](MemoryShape& s) { s.offload.optimizer = next_place(s.offload.optimizer); });
  if (shape.state_bytes == 4)
    propose("--optim_state_dtype bf16", optimizer, [](MemoryShape& s) { s.state_bytes = 2; });
  // With one rank, as two would be.
  const auto with_stage = [](int stage) {
    return [stage](MemoryShape& s) {
      s.zero = stage;
      s.ranks = std::max(2, s.ranks);
    };
  };
  const std::string where = shape.ranks > 1 ? "" : " on 2 ranks or more";
  if (shape.zero < 1) propose(cat("--zero 1", where), optimizer, with_stage(1));
  if (shape.zero < 2) propose(cat("--zero 2", where), gradients, with_stage(2));
  if (shape.zero < 3) propose(cat("--zero 3", where), parameters, with_stage(3));
  if (!shape.update_in_backward)
    propose("--update_in_backward (with --max_grad_norm 0, without accumulation or fp16)", gradients,
            [](MemoryShape& s) { s.update_in_backward = true; });
  if (shape.zero == 3 && shape.offload.parameters != Offload::disk)
    propose(cat("--offload_params ", name_of(next_place(shape.offload.parameters))), parameters,
            [&](MemoryShape& s) { s.offload.parameters = next_place(s.offload.parameters); });

  if (shape.ulysses > 1 && 2 * shape.head_chunks <= shape.heads_here)
    propose(cat("--head_chunks ", 2 * shape.head_chunks), attention,
            [](MemoryShape& s) { s.head_chunks *= 2; });

  const int64_t rows = shape.batch * shape.shard_tokens;
  for (const bool head : {false, true}) {
    const int64_t tile = std::min(rows, head ? shape.logits_tile_tokens : shape.tile_tokens);
    if (tile < 32) continue;
    propose(cat(head ? "--logits_tile_tokens " : "--tile_tokens ", tile / 2), tiles,
            [head, tile](MemoryShape& s) { (head ? s.logits_tile_tokens : s.tile_tokens) = tile / 2; });
  }
  return options;
}

}  // namespace trireme
