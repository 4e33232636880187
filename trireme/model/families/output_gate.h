// What multiplies attention's output before the out projection, in the tile dtype, and where it is projected.
//
//   attention (Qwen3.5, arXiv 2505.06708)   o_TA, gate_TA -> o sigmoid(gate)                  A = H D
//   DeltaNet (arXiv 2412.06464)             o_TA, gate_TA -> RMS norm(o, of a head) silu(gate)    A = V Dv
//   neither                                 o_TA
#pragma once

#include "trireme/model/layer.h"
#include "trireme/model/model_config.h"

namespace trireme::decoder {

at::Tensor gated_output(const ModelConfig& config, const LayerTensors& layer, const at::Tensor& o_TA,
                        const at::Tensor& gate_TA);
// d of it -> do [T, A] (written), d(gate) over the gate, and added to the norm's gradient.
void gated_output_backward(const ModelConfig& config, const LayerTensors& layer, UnitGradients& gradients,
                           const at::Tensor& o_TA, const at::Tensor& gate_TA, const at::Tensor& dgated_TA,
                           const at::Tensor& do_TA);

// A projection [T, 2H + 2K, D], in which a gate lies behind each query, -> q|k|v [T, N, D] and gate [T, A].
void part_gates(const AttentionHeads& heads, const at::Tensor& projected_TPD, const at::Tensor& qkv_TND,
                const at::Tensor& gate_TA);
// The queries and keys of its first rows [T, 2H + K, D]: [T, H + K, D].
at::Tensor without_gates(const AttentionHeads& heads, const at::Tensor& projected_TPD);
// Back: [T, 2H + 2K, D], of the dtype of q|k|v.
at::Tensor with_gates(const AttentionHeads& heads, const at::Tensor& qkv_TND, const at::Tensor& gate_TA);

}  // namespace trireme::decoder
