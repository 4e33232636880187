// The MLP of a mixture that every token has beside its experts (arXiv 2401.06066; its share as in Qwen2-MoE):
//
//   normed_TM -> gate|up_T2I -> SwiGLU or GeGLU x share_T1: act_TI -> down: the caller's
//
// share = sigmoid(normed gate'), or 1 in a model without such a gate (Gemma 4). I its width
// (ModelConfig::shared_intermediate_size). Kept: gate|up. Backward runs the share once more, and gate|up (or
// takes what was kept), never down: the share's gradient is the product of act and of its gradient.
#pragma once

#include <ATen/ATen.h>

#include "trireme/model/model_config.h"
#include "trireme/model/unit_gradients.h"
#include "trireme/model/unit_weights.h"

namespace trireme::decoder {

// -> act [T, I]. `kept` [T, 2 I], contiguous, is filled where defined. Tensors have the tile dtype.
at::Tensor shared_expert_act(const ModelConfig& config, const UnitWeights& w, const at::Tensor& normed_TM,
                             const at::Tensor& kept_T2I);
// From the gradient [T, M] of what down gives; added to the gradients and to d(normed) [T, M], which is made where
// it is undefined. May write over `kept`; undefined: made again.
void shared_expert_backward(const ModelConfig& config, const UnitWeights& w, UnitGradients& gradients,
                            const at::Tensor& normed_TM, const at::Tensor& ddown_TM, at::Tensor kept_T2I,
                            at::Tensor& dnormed_TM);

}  // namespace trireme::decoder
