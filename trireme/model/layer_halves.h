// The two token-wise halves of a layer around attention, forward and backward written out, on a tile of T
// tokens:
//
//   attention_input    x_TM -> q|k|v, ready for attention: qkv_TND
//   attention_output   x_TM, o_TA -> out projection, residual, MLP, residual: y_TM
//
// T tokens of the tile, M hidden width, N = H + 2K heads of D, A = H D. What lies inside a half is the
// family's: decoder_layer.h (norms before, rotary, SwiGLU) or encoder_layer.h (norms after, GELU). Both keep
// one law: no matmul's forward runs more than twice in a step. Tensors between tiles have the storage dtype;
// inside a tile everything has the tile dtype, which is the dtype of the weights. Gradients of weights are
// added in fp32.
#pragma once

#include <ATen/ATen.h>

#include "trireme/model/model_config.h"
#include "trireme/model/parameter_layout.h"
#include "trireme/model/rotary.h"

namespace trireme {

struct LayerTensors {
  const ModelConfig* config = nullptr;
  LayerWeights weights;
  // Of decoders: rows are the positions of this rank's tokens; tile row t has row (first_row + t) % rows.
  RotaryTable rotary;
};

// What attention_output's backward reads, when it is kept: rows of whole-sequence buffers in the tile dtype.
// Backward is given the same rows as the forward that filled them, and may write over them.
struct AttentionOutputKept {
  at::Tensor x1;   // [T, M]
  at::Tensor mlp;  // [T, ModelConfig::mlp_kept_width()]
};

// x [T, M] -> qkv [T, N, D] (written).
void attention_input_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                             const at::Tensor& qkv_TND);

// dqkv [T, N, D] -> added to dx [T, M] and to the gradients.
void attention_input_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                              int64_t first_row, const at::Tensor& dqkv_TND, const at::Tensor& dx_TM);

// x [T, M], o [T, H D] -> y [T, M] (written). `kept`, when not null, is filled.
void attention_output_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& o_TA,
                              const at::Tensor& y_TM, AttentionOutputKept* kept);

// dy [T, M] -> dx [T, M] (which may be dy) and do [T, H D] (both written), and added to the gradients. `kept`
// null: recomputed from x, o.
void attention_output_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                               const at::Tensor& o_TA, const at::Tensor& dy_TM, AttentionOutputKept* kept,
                               const at::Tensor& dx_TM, const at::Tensor& do_TA);

}  // namespace trireme
