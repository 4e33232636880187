// The expert of a mixture that every token has beside its own (arXiv 2401.06066; its share as in Qwen2-MoE):
//
//   normed_TM -> gate|up_T2I -> SwiGLU x share_T1 -> down_TM, added to x1_TM     share = sigmoid(normed gate')
//
// I its width (ModelConfig::shared_intermediate_size). Kept: gate|up. Backward runs the share once more, and
// gate|up (or takes what was kept), never down: the share's gradient is the product of act and of its gradient.
#pragma once

#include <ATen/ATen.h>

#include "trireme/model/model_config.h"
#include "trireme/model/unit_gradients.h"
#include "trireme/model/unit_weights.h"

namespace trireme::decoder {

// x1 [T, M] += what it gives. `kept` [T, 2 I], contiguous, is filled where defined. Tensors have the tile
// dtype.
void add_shared_expert(const ModelConfig& config, const UnitWeights& w, const at::Tensor& normed_TM,
                       const at::Tensor& kept_T2I, at::Tensor& x1_TM);
// dy [T, M] -> added to d(normed) [T, M] and to the gradients. May write over `kept`; undefined: made again.
void shared_expert_backward(const ModelConfig& config, const UnitWeights& w, UnitGradients& gradients,
                            const at::Tensor& normed_TM, const at::Tensor& dy_TM, at::Tensor kept_T2I,
                            at::Tensor& dnormed_TM);

}  // namespace trireme::decoder
