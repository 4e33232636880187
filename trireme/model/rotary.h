// Rotary position embeddings (arXiv 2104.09864) and their scalings: linear, dynamic NTK, YaRN (arXiv
// 2309.00071), llama3 and Gemma 4's of some of a head's pairs, equal to Hugging Face's tables for the same config.
// Dynamic NTK looks at the whole sequence, not the shard.
#pragma once

#include <ATen/ATen.h>

#include "trireme/model/model_config.h"

namespace trireme {

struct RotaryFrequencies {
  at::Tensor inverse;            // [D / 2] fp32
  double attention_scaling = 1;  // multiplies cos and sin (YaRN)
};
// `rope`: of the config, for layers whose heads are `head_dim` wide.
RotaryFrequencies rotary_frequencies(const ModelConfig& config, const RopeConfig& rope, int64_t head_dim,
                                     int64_t sequence_tokens);

// cos and sin of positions [count] int64 of a sequence of `sequence_tokens`, fp32 on their device, halves not
// repeated. Undefined for a model that does not rotate.
struct RotaryTable {
  at::Tensor cos;  // [count, D / 2]
  at::Tensor sin;  // [count, D / 2]
  // [count]: of queries, after their rotation (QueryScaling); undefined: all 1.
  at::Tensor query_scale = {};
};
RotaryTable make_rotary_table(const ModelConfig& config, const RopeConfig& rope, int64_t head_dim,
                              int64_t sequence_tokens, const at::Tensor& positions);

}  // namespace trireme
