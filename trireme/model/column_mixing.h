// What a layer without attention computes over time, between the exchanges of its columns, on the heads of one
// rank and all tokens. Of a DeltaNet: families/delta_net_mixing.h.
#pragma once

#include <ATen/ATen.h>

#include "trireme/attention/delta_heads.h"
#include "trireme/model/layer.h"
#include "trireme/model/unit_gradients.h"

namespace trireme {

// document_begins [B, S]: kernels/document_begins.h, or undefined.
struct ColumnMixing {
  // This rank's columns of all tokens [B, S, c] -> o [B, S, v Dv] of its value heads.
  at::Tensor (*forward)(const LayerTensors& layer, const DeltaShare& share, const at::Tensor& columns_BSc,
                        const at::Tensor& document_begins_BS) = nullptr;
  // do [B, S, v Dv] -> d(columns) [B, S, c], and added to the gradients.
  at::Tensor (*backward)(const LayerTensors& layer, UnitGradients& gradients, const DeltaShare& share,
                         const at::Tensor& columns_BSc, const at::Tensor& document_begins_BS,
                         const at::Tensor& do_BSo) = nullptr;
};

}  // namespace trireme
