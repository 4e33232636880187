// What a plan is asked for: a model, devices, a length and an objective, and the options that the user has
// chosen already. A pinned option is obeyed, never changed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "trireme/base/enum_names.h"
#include "trireme/forecast/forecast_inputs.h"
#include "trireme/forecast/precision.h"
#include "trireme/kernels/attention_kernel.h"
#include "trireme/model/attention_pairs.h"
#include "trireme/plan/configuration.h"
#include "trireme/plan/hardware_profile.h"

namespace trireme {

enum class Objective : uint8_t {
  throughput,   // the most tokens a second at the length
  length,       // the longest sequence that fits, and the fastest configuration there
  fewest_gpus,  // the fewest devices that hold the length, and reach the target rate where there is one
};
constexpr auto enum_names(Objective) {
  using enum Objective;
  return std::to_array<EnumName<Objective>>(
      {{throughput, "throughput"}, {length, "length"}, {fewest_gpus, "fewest_gpus"}});
}

struct PinnedOptions {
  std::optional<int> sp;  // ulysses x ring
  std::optional<int> ulysses;
  std::optional<int> ring;
  std::optional<int> zero;
  std::optional<Offload> offload_parameters;
  std::optional<Offload> offload_optimizer;
  std::optional<Offload> offload_activations;
  std::optional<Recompute> recompute;  // never automatic
  std::optional<double> keep_fraction;
  std::optional<double> keep_qkv_fraction;
  std::optional<double> keep_mlp_fraction;
  std::optional<int64_t> checkpoint_every;
  std::optional<int> head_chunks;
  std::optional<int64_t> tile_tokens;
  std::optional<int64_t> logits_tile_tokens;
  std::optional<int64_t> batch;
  std::optional<int64_t> accumulation;
};

// What a search does not change: numbers would, or it is no gain.
struct RunSettings {
  Precision precision = Precision::bf16;
  bool gathers_keys = false;  // --ring_method gather
  bool ring_possible = true;  // block-sparse layouts have none
  bool strict_divisible = false;
  AttentionKernel attention = AttentionKernel::automatic;
  bool update_in_backward = false;
  bool save_in_background = false;
  int64_t reduce_bytes = 4;       // of gradients that travel
  int64_t state_bytes = 4;        // of a moment
  int moments = 2;                // AdamW 2, SGD 0
  bool whole_parameters = false;  // of an optimizer that steps whole matrices, which ZeRO cuts
};

struct PlanRequest {
  std::string model_name;
  ModelSizes model;
  // Of one head, for a document of so many tokens (ModelConfig::attention_pairs).
  std::function<AttentionPairs(int64_t)> attention_pairs;
  HardwareProfile hardware;
  int devices = 1;
  int64_t tokens = 0;           // of a sample; 0 with Objective::length
  int64_t document_tokens = 0;  // samples are packed of documents so long; 0: of one
  Objective objective = Objective::throughput;
  int64_t token_budget = 0;             // 0: none
  double target_tokens_per_second = 0;  // of all devices; 0: none
  // Of all ranks. 0: one of each data-parallel group, or what a pinned batch gives.
  int64_t samples_per_step = 0;
  RunSettings settings;
  PinnedOptions pinned;
  double memory_share = 0.92;  // that a plan may fill of each memory (memory_limits)
  bool allow_disk = false;     // offload to a disk is searched too

  // Of each of so many stages, which share the budget.
  PlanRequest of_stages(int64_t count) const {
    PlanRequest stage = *this;
    if (token_budget > 0) stage.token_budget = std::max<int64_t>(1, token_budget / count);
    return stage;
  }

  // A GPU's rates are of other kernels than the reference kernel, whose scores the forecast does not count.
  bool knows_attention(int64_t sample_tokens) const {
    return settings.attention != AttentionKernel::reference ||
           (!hardware.is_gpu && sample_tokens <= kMostByReference_tokens);
  }

  // Of a sample of `sample_tokens`.
  AttentionPairs pairs_of_sample(int64_t sample_tokens) const {
    if (document_tokens <= 0 || document_tokens >= sample_tokens) return attention_pairs(sample_tokens);
    const int64_t whole = sample_tokens / document_tokens, rest = sample_tokens % document_tokens;
    AttentionPairs pairs = attention_pairs(document_tokens) * static_cast<double>(whole);
    if (rest > 0) pairs += attention_pairs(rest);
    return pairs;
  }
};

}  // namespace trireme
