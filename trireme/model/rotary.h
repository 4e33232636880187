// Rotary position embeddings (arXiv 2104.09864) and their scalings: linear, dynamic NTK, YaRN (arXiv
// 2309.00071), llama3, Gemma 4's of some of a head's pairs and Qwen3.5's of some of its values, equal to
// Hugging Face's tables for the same config. Dynamic NTK looks at the whole sequence, not the shard.
#pragma once

#include <ATen/ATen.h>

#include "trireme/model/model_config.h"

namespace trireme {

// Values of a head that turn, the first ones: all D but where RopeConfig::turning_share says less.
int64_t turning_width(const RopeConfig& rope, int64_t head_dim);

struct RotaryFrequencies {
  at::Tensor inverse;            // [turning_width / 2] fp32
  double attention_scaling = 1;  // multiplies cos and sin (YaRN)
};
// `rope`: of the config, for layers whose heads are `head_dim` wide.
RotaryFrequencies rotary_frequencies(const ModelConfig& config, const RopeConfig& rope, int64_t head_dim,
                                     int64_t sequence_tokens);

// cos and sin of positions [count] int64 of a sequence of `sequence_tokens`, fp32 on their device, halves not
// repeated. Undefined for a model that does not rotate.
struct RotaryTable {
  at::Tensor cos;  // [count, turning_width / 2]
  at::Tensor sin;  // [count, turning_width / 2]
  // [count]: of queries, after their rotation (QueryScaling); undefined: all 1.
  at::Tensor query_scale = {};
};
RotaryTable make_rotary_table(const ModelConfig& config, const RopeConfig& rope, int64_t head_dim,
                              int64_t sequence_tokens, const at::Tensor& positions);

}  // namespace trireme
