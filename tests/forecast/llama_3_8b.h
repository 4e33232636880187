// Llama 3 8B as the forecast sees it.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/forecast/forecast_inputs.h"

namespace trireme::forecast_test {

inline constexpr int64_t kLayers = 32, kHidden = 4096, kIntermediate = 14336, kVocab = 128256;
inline constexpr int64_t kKeyValueWidth = 8 * 128,
                         kLayerElements = 2 * kHidden + (2 * kHidden + 2 * kKeyValueWidth) * kHidden +
                                          3 * kIntermediate * kHidden;

}  // namespace trireme::forecast_test

namespace trireme::testing {

inline ModelSizes llama_3_8b() {
  using namespace forecast_test;
  ModelSizes model{.layers = kLayers,
                   .hidden = kHidden,
                   .intermediate = kIntermediate,
                   .mlp_kept_width = 2 * kIntermediate,
                   .heads = 32,
                   .kv_heads = 8,
                   .head_dim = 128,
                   .vocab = kVocab,
                   .unit_elements = std::vector<int64_t>(kLayers + 2, kLayerElements)};
  model.unit_elements.front() = kVocab * kHidden;
  model.unit_elements.back() = kHidden + kVocab * kHidden;
  return model;
}

}  // namespace trireme::testing

namespace trireme::forecast_test {

// In bf16 on one of 8 GPUs with Ulysses and ZeRO 3, for a sample of `tokens` tokens.
inline ForecastInputs llama_3_8b(int64_t tokens) {
  ForecastInputs inputs;
  inputs.model = testing::llama_3_8b();
  inputs.ulysses = inputs.ranks = 8;
  inputs.rank_heads = 4;
  inputs.rank_kv_heads = 1;
  inputs.packed_heads = 32 + 2 * 8;
  inputs.zero = 3;
  inputs.recompute = {Recompute::full, 1, 1, kLayers};
  inputs.tile_tokens = 4096;
  inputs.logits_tile_tokens = 2048;
  inputs.storage_bytes = inputs.tile_bytes = 2;
  inputs.device_is_host = false;
  inputs.bf16_values = inputs.adamw_kernel = inputs.fused_on_gpu = true;
  return with_batch(inputs, 1, tokens);
}

}  // namespace trireme::forecast_test
