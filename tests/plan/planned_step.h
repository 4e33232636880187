// A small model and a hardware profile with round rates, for the planner's tests.
#pragma once

#include "trireme/forecast/sequence_ranks.h"
#include "trireme/plan/step_work.h"

namespace trireme::testing {

inline ModelSizes small_model() {
  ModelSizes model{.layers = 4,
                   .hidden = 256,
                   .intermediate = 768,
                   .mlp_kept_width = 1536,
                   .heads = 8,
                   .kv_heads = 4,
                   .head_dim = 32,
                   .vocab = 1024};
  const int64_t layer = 256 * 512 + 256 * 256 + 3 * 256 * 768 + 2 * 256;
  model.unit_elements = {1024 * 256, layer, layer, layer, layer, 1024 * 256 + 256};
  return model;
}

// Its products: 4 x (qkv + out + three of the MLP) + head.
inline constexpr double kSmallLayer = 256.0 * 512 + 256.0 * 256 + 3 * 256.0 * 768, kSmallHead = 256.0 * 1024;
inline constexpr double kSmallParameters = 4 * kSmallLayer + kSmallHead;
// Of its units: norms and the embedding too.
inline constexpr double kSmallElements = 4 * (kSmallLayer + 512) + 2 * kSmallHead + 256;

// LoRA of rank r, of so many parameters in every layer.
inline void adapt_layers(ModelSizes& model, int64_t rank, int64_t elements_of_layer) {
  const std::vector<int64_t> of_layers(static_cast<size_t>(model.layers), elements_of_layer);
  model.adapters = {.first_unit = static_cast<int>(model.first_layer_unit()),
                    .unit_elements = of_layers,
                    .lora_elements = of_layers,
                    .rank = rank};
}

// Of rank 0 of ulysses x ring x dp ranks: one causal sample of `tokens`.
inline PlannedStep small_step(int64_t tokens, Recompute recompute, int ulysses = 1, int ring = 1,
                              int dp = 1) {
  PlannedStep step;
  ForecastInputs inputs;
  inputs.model = small_model();
  inputs.tokens = tokens;
  inputs.ranks = ulysses * ring * dp;
  inputs.tile_tokens = 256;
  inputs.logits_tile_tokens = 64;
  inputs.recompute = {recompute, 1, 1, inputs.model.layers};
  step.inputs = with_sequence_ranks(inputs, ulysses, ring, 0);
  step.attention_pairs = 4 * static_cast<double>(tokens) * static_cast<double>(tokens) / 2;
  return step;
}

// The small model with 8 experts of which a token has 2, each half as wide as its MLP.
inline PlannedStep mixture_step(int64_t tokens, Recompute recompute) {
  PlannedStep step = small_step(tokens, recompute);
  ModelSizes& model = step.inputs.model;
  model.experts = 8;
  model.experts_per_token = 2;
  model.intermediate = 384;
  model.mlp_kept_width = 2 * 2 * 384 + 8;
  return step;
}

inline PlannedStep stepped_on_the_host(bool is_gpu) {
  PlannedStep step = small_step(64, Recompute::full);
  step.inputs.device_is_host = !is_gpu;
  step.inputs.offload.optimizer = Offload::cpu;
  return step;
}

inline HardwareProfile round_profile(bool is_gpu) {
  HardwareProfile profile;
  profile.name = "round";
  profile.is_gpu = is_gpu;
  profile.devices_per_machine = 4;
  profile.memory_bytes = int64_t{1} << 34;
  profile.peak_flops_16_bit = profile.peak_flops_32_bit = 2e12;
  for (const auto& [kind, name] : enum_names(WorkKind{})) {
    const double flops_per_second = is_attention(kind) ? 5e11 : 1e12;
    profile.rates_32_bit[kind] = {{{0, 0, counts_flops(kind) ? flops_per_second : 1e9}}};
  }
  profile.rates_16_bit = profile.rates_32_bit;
  profile.within_machine = {1e-5, 1e10};
  profile.across_machines = {1e-4, 1e9};
  profile.to_host = {1e-5, 1e10};
  profile.host_optimizer_per_second = 1e8;
  return profile;
}

}  // namespace trireme::testing
