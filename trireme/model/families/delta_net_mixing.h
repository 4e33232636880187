// What a DeltaNet (arXiv 2412.06464) computes over time, on the heads of one rank and all tokens:
//
//   q|k|v|b|a columns_BSc -> convolution over time, silu -> q, k, v
//                            b -> beta = sigmoid(b);   a -> decay = -exp(A) softplus(a + bias)
//                         -> delta rule (kernels/delta_rule.h) -> o_BSo
//
// c this rank's columns (attention/delta_heads.h), o its value heads' values. Backward makes the convolution
// and the rule's states again: it reads the columns alone. Gradients of the convolution's weights, A and the
// bias are those of this rank's heads; the sum over ranks is the whole.
#pragma once

#include "trireme/model/column_mixing.h"

namespace trireme::decoder {

// ColumnMixing's.
at::Tensor delta_net_forward(const LayerTensors& layer, const DeltaShare& share,
                             const at::Tensor& columns_BSc, const at::Tensor& document_begins_BS);
at::Tensor delta_net_backward(const LayerTensors& layer, UnitGradients& gradients, const DeltaShare& share,
                              const at::Tensor& columns_BSc, const at::Tensor& document_begins_BS,
                              const at::Tensor& do_BSo);

}  // namespace trireme::decoder
