// What a decoder's layers are told beside x (Gemma 4 E2B and E4B), and what a layer makes of it. On a tile of T
// tokens, of L layers, P = ModelConfig::layer_input_width:
//
//   before layers   x_TM -> projection, times M^-1/2 -> norm: c_TLP;  tokens -> rows of a table, times P^1/2: r_TLP
//                   inputs_LTP = (c + r) / sqrt(2)
//   in a layer      y_TM -> gate: g_TP;  gelu(g) * input_TP -> projection: p_TM -> norm, + y_TM
//
// Backward runs each product once more.
#pragma once

#include <memory>

#include <ATen/ATen.h>

#include "trireme/model/layer_inputs.h"
#include "trireme/model/model_config.h"

namespace trireme::decoder {

std::unique_ptr<LayerInputs> make_layer_inputs(const ModelConfig& config);

// y [T, M] += what the layer makes of it and of input [T, P]. y has the tile dtype.
void add_layer_input(const ModelConfig& config, const UnitWeights& w, const at::Tensor& input_TP,
                     at::Tensor& y_TM);
// y as it was before. dy [T, M] becomes d of it, input its gradient; added to the gradients. y and dy have the
// tile dtype.
void layer_input_backward(const ModelConfig& config, const UnitWeights& w, UnitGradients& gradients,
                          const at::Tensor& y_TM, const at::Tensor& input_TP, at::Tensor& dy_TM);

}  // namespace trireme::decoder
