// What a token of a layer with a DeltaNet is projected to, in the order of the files, <-> its columns
// (attention/delta_heads.h) and its gate:
//
//   by kind       q|k|v|b|a|z                               of all heads
//   by key head   q k v.. z.. of each key head, then b.. a.. of each: a key head has V / K value heads
//                        <->   columns_TC q|k|v|b|a, gate_TA z
//
// P = C + A values of a token. Tensors may have any dtypes and strides.
#pragma once

#include <ATen/ATen.h>

#include "trireme/model/delta_net.h"

namespace trireme::decoder {

// Written: columns and gate.
void part_projection(const DeltaNet& net, const at::Tensor& projected_TP, const at::Tensor& columns_TC,
                     const at::Tensor& gate_TA);
// Written: projected. The adjoint.
void join_projection(const DeltaNet& net, const at::Tensor& columns_TC, const at::Tensor& gate_TA,
                     const at::Tensor& projected_TP);

}  // namespace trireme::decoder
