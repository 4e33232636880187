// What one rank's memory depends on: the model, this rank's share of a micro-batch, the policies, the sizes
// of elements. engine/make_forecast_inputs.h fills it. Like all of this folder without torch, so that the
// planner uses it too.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "trireme/base/sample_layout.h"
#include "trireme/forecast/gather_order.h"
#include "trireme/forecast/recompute_plan.h"
#include "trireme/memory/offload.h"
#include "trireme/memory/resident_layers.h"
#include "trireme/model/attention_heads.h"
#include "trireme/model/delta_net.h"
#include "trireme/model/tile_formula.h"

namespace trireme {

inline constexpr int64_t kFloat_bytes = 4;

// Of LoRA (Adapters of model_layout.h), by its units.
struct AdapterSizes {
  int first_unit = 0;                       // of the model's units; the others follow it
  std::vector<int64_t> unit_elements = {};  // of flat buffers, padded as ModelSizes::unit_elements
  std::vector<int64_t> lora_elements = {};  // of the matrices of low rank
  int64_t rank = 0;                         // r
  bool trains_output = false;               // ModelLayout::trains_output
  bool operator==(const AdapterSizes&) const = default;
};

struct ModelSizes {
  int64_t layers = 0;
  int64_t hidden = 0;               // M
  int64_t intermediate = 0;         // I, of each expert of a mixture
  int64_t experts = 0;              // E of a mixture; 0: one MLP for all tokens
  int64_t experts_per_token = 0;    // of them
  bool experts_beside_mlp = false;  // ModelConfig's
  int64_t shared_intermediate = 0;  // of an expert that every token has beside them; 0: there is none
  int64_t mlp_kept_width = 0;       // ModelConfig::mlp_kept_width
  int64_t heads = 0;                // H
  int64_t kv_heads = 0;             // K
  int64_t head_dim = 0;             // D
  bool keys_are_values = false;     // AttentionHeads
  bool gated_attention = false;     // AttentionHeads::gated
  bool share_keys = false;          // AttentionHeads; of a model of such layers alone
  // Values of a head that turn; 0: all.
  int64_t turning_width = 0;
  // Of layers without a window, where they have others (Gemma 4); layer_kinds.h tells the kinds apart.
  std::optional<AttentionHeads> full_heads = {};
  // Of layers without attention (Qwen3.5), and which these are; of a model of such layers alone the list is
  // empty.
  std::optional<DeltaNet> delta_net = {};
  std::vector<bool> delta_layers = {};
  // ModelConfig::layer_of_keys of each layer, where some take another's (Gemma 4 E2B); and of those I and
  // mlp_kept_width.
  std::vector<int64_t> layers_of_keys = {};
  int64_t sharing_intermediate = 0;
  int64_t sharing_mlp_kept_width = 0;
  int64_t layer_input_width = 0;  // P of what layers are told beside x; 0: nothing
  int64_t vocab = 0;              // V
  bool qk_norm = false;
  bool v_norm = false;       // ModelConfig::v_norm
  bool caps_logits = false;  // ModelConfig::logit_cap
  bool caps_scores = false;  // ModelConfig::score_cap
  bool post_norms = false;   // ModelConfig::post_norms
  int rotary_tables = 1;     // of cosines and sines; 0: nothing is rotated
  // Longer samples have a factor for each token's queries (QueryScaling).
  int64_t most_unscaled_tokens = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> layer_windows =
      {};  // ModelConfig::layer_window; empty: attention is full in every layer
  // Documents of no more tokens are causal squares in some layer: its window; 0 where attention is full.
  int64_t causal_tokens = std::numeric_limits<int64_t>::max();
  TileFormula tiles = TileFormula::decoder;
  // The flat buffers of ModelLayout's units, with their padding for the run's ranks (with_ranks).
  std::vector<int64_t> unit_elements = {};
  bool tied = false;
  bool embedding_read_backward = false;
  std::optional<AdapterSizes> adapters = {};  // which alone are trained
  bool operator==(const ModelSizes&) const = default;

  // Of layers that are not of full_heads.
  AttentionHeads common_heads() const {
    return {heads, kv_heads, head_dim, keys_are_values, gated_attention, share_keys};
  }
  bool adapted() const { return adapters.has_value(); }
  bool trains_output() const { return !adapters || adapters->trains_output; }
  bool has_layer_inputs() const { return layer_input_width > 0; }
  bool shares_keys(size_t layer) const {
    return !layers_of_keys.empty() && layers_of_keys[layer] != static_cast<int64_t>(layer);
  }
  EndUnits end_units() const { return {tied, embedding_read_backward, has_layer_inputs(), !adapted()}; }
  size_t first_layer_unit() const { return static_cast<size_t>(end_units().layer_unit(0)); }
  int lowest_trained_unit() const { return adapters ? adapters->first_unit : kEmbeddingUnit; }
  // Elements of what is trained of a unit.
  int64_t trained_elements(size_t unit) const {
    const std::vector<int64_t>& trained = adapters ? adapters->unit_elements : unit_elements;
    const auto first = static_cast<size_t>(lowest_trained_unit());
    return unit < first || unit >= first + trained.size() ? 0 : trained[unit - first];
  }

  bool scales_queries(int64_t tokens) const { return tokens > most_unscaled_tokens; }
  // MLPs that a token goes through beside a shared expert, and values of a token between their products.
  int64_t mlps_per_token() const { return experts > 0 ? experts_per_token : 1; }
  int64_t mlp_width() const { return mlps_per_token() * intermediate + shared_intermediate; }
  // Tokens of which one goes to an expert, on average.
  double tokens_per_expert_row() const {
    return experts > 0 ? static_cast<double>(experts) / static_cast<double>(experts_per_token) : 1;
  }
};

// How gradients are summed over ranks (comm/collectives.h).
enum class RankSums {
  of_blocks,      // every rank's block of this rank's share is brought first
  while_reading,  // from the others' memory, piece by piece
  by_library,     // fp32, by NCCL: without blocks
};

struct ForecastInputs {
  ModelSizes model;
  // This rank's share of a micro-batch.
  int64_t batch = 1;          // B
  int64_t tokens = 0;         // S
  int64_t shard_tokens = 0;   // s
  int64_t ring_tokens = 0;    // n: of all Ulysses ranks of this ring index; S where ring is 1
  int ulysses = 1;            // ranks that trade sequence for heads
  int ring = 1;               // groups of Ulysses ranks that share a sequence
  int sp_rank = 0;            // of ulysses x ring
  bool gathers_keys = false;  // RingMethod::gather
  bool ring_possible = true;  // block-sparse layouts have none
  int head_chunks = 1;
  int64_t rank_heads = 0;     // h
  int64_t rank_kv_heads = 0;  // k
  int64_t packed_heads = 0;   // sum over the Ulysses ranks of h + 2k: key/value heads may go to several ranks
  int ranks = 1;              // of the whole run, over which stores shard
  int rank = 0;
  // NCCL's buffers for each machine_peers() of this rank; 0 where it took them before memory was planned.
  int64_t peer_buffers_bytes = 0;
  int machine_ranks = 1;      // ranks on a machine; read where there are such buffers
  int64_t micro_batches = 1;  // of a step
  // Policies.
  int zero = 0;  // ZeRO stage
  RecomputePlan recompute;
  OffloadOptions offload;
  int64_t resident_layers = ResidentLayers{}.resident_layers;  // of those that keep any
  bool update_in_backward = false;
  bool save_in_background = false;
  int64_t tile_tokens = 0;
  int64_t logits_tile_tokens = 0;
  // Bytes of an element.
  int64_t storage_bytes = 4;  // e
  int64_t tile_bytes = 4;     // t
  int64_t reduce_bytes = 4;   // of gradients that travel
  bool bf16_values = false;  // that compute reads: masters may be the bits that they lack (masters_are_split)
  int64_t state_bytes = 4;   // of a moment
  int moments = 2;           // AdamW 2, SGD 0
  // The device and its kernels.
  bool device_is_host = true;  // the CPU, where offload to the host moves nothing
  int product_threads = 0;     // of the CPU, each of which copies blocks of a 16-bit weight gradient
  bool adamw_kernel = false;   // a CPU's or CUDA's (shard/adamw_kernel.h), which needs no fp32 copies
  bool token_kernels = false;  // CUDA's for token-wise operations (kernels/token_ops_gpu.h)
  RankSums rank_sums = RankSums::of_blocks;
  int64_t document_tokens = 0;  // of the document that a token is in, on average; 0: of a sample
  bool packed = false;          // samples of several documents, so that each has positions of its own
  bool fused_on_gpu = false;  // an attention kernel of CUDA; the reference kernel's workspace is not counted
  bool documents_alone = false;  // long ones are calls of their own (kernels/long_documents.h)
  bool score_tiles = false;    // attention by tiles in memory (kernels/score_tile_sizes.h); with fused_on_gpu
  bool key_blocks = false;     // long dense calls are cut (kernels/key_blocks.h)
  bool flash4 = false;         // FlashAttention-4 has the dense calls that it takes (flash4_sizes.h)
  bool packed_graphs = false;  // cuDNN's graphs of segments (kernels/attention_graph.h)
  int flash_threads = 0;       // of the CPU's attention kernel; 0: another kernel
  int64_t flash_element_bytes = 4;  // that its tiles are multiplied in
  bool operator==(const ForecastInputs&) const = default;
};

// The same with micro-batches of `batch` samples of `tokens` tokens.
inline ForecastInputs with_batch(ForecastInputs inputs, int64_t batch, int64_t tokens) {
  const SampleLayout layout{tokens, inputs.ulysses, inputs.ring};
  inputs.batch = batch;
  inputs.tokens = tokens;
  inputs.shard_tokens = layout.size(inputs.sp_rank);
  inputs.ring_tokens = layout.ring_tokens(layout.ring_index(inputs.sp_rank));
  return inputs;
}

// Forward and backward go on while units are stepped (engine/deferred_updates.h).
inline bool updates_are_deferred(const ForecastInputs& inputs) {
  return inputs.offload.optimizer != Offload::none;
}

// The sum of a unit's gradient over ranks is finished when the next unit's backward is (SumsFinish); with ZeRO
// 0 and 1 in the step's last micro-batch. On a CPU nothing would be hidden; and what is stepped at once is not
// put off.
inline bool sums_go_beside_backward(const ForecastInputs& inputs) {
  return inputs.ranks > 1 && !inputs.update_in_backward && !inputs.device_is_host;
}

// Whether what is offloaded there takes the device's memory: on a CPU it always does while it is read.
inline bool on_device(const ForecastInputs& inputs, Offload offload) {
  return offload == Offload::none || inputs.device_is_host;
}

// What layers keep leaves the device's memory: to a disk, or to a host that is not the device.
inline bool activations_leave(const ForecastInputs& inputs) {
  return inputs.offload.activations == Offload::disk || !on_device(inputs, inputs.offload.activations);
}

}  // namespace trireme
