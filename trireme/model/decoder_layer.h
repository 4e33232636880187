// The two token-wise halves of a decoder layer around attention, forward and backward written out, on a tile
// of T tokens:
//
//   attention_input    x_TM -> RMS norm -> q|k|v projection -> (q/k norm) -> rotary -> qkv_TND
//   attention_output   x_TM, o -> out projection + x = x1 -> RMS norm -> gate|up -> SwiGLU -> down + x1 = y_TM
//
// T tokens of the tile, M hidden width, N = H + 2K heads of D, I the MLP's width. Backward runs the out
// projection and gate|up once more (or takes what was kept), never the down projection: no matmul's forward
// runs more than twice in a step. Tensors between tiles have the storage dtype; inside a tile everything has
// the tile dtype, which is the dtype of the weights. Gradients of weights are added in fp32.
#pragma once

#include <ATen/ATen.h>

#include "trireme/model/model_config.h"
#include "trireme/model/parameter_layout.h"
#include "trireme/model/rotary.h"

namespace trireme {

struct LayerTensors {
  const ModelConfig* config = nullptr;
  DecoderTensors weights;
  RotaryTable
      rotary;  // rows are the positions of this rank's tokens; tile row t has row (first_row + t) % rows
};

// x [T, M] -> qkv [T, N, D] (written).
void attention_input_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                             at::Tensor qkv_TND);

// dqkv [T, N, D] -> added to dx [T, M] and to the gradients.
void attention_input_backward(const LayerTensors& layer, DecoderTensors& gradients, const at::Tensor& x_TM,
                              int64_t first_row, const at::Tensor& dqkv_TND, at::Tensor dx_TM);

// What attention_output's backward reads, when it is kept: rows of whole-sequence buffers, storage dtype.
struct AttentionOutputKept {
  at::Tensor x1;       // [T, M]
  at::Tensor gate_up;  // [T, 2 I]; backward writes over it
};

// x [T, M], o [T, H D] -> y [T, M] (written). `kept`, when not null, is filled.
void attention_output_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& o_TA,
                              at::Tensor y_TM, AttentionOutputKept* kept);

// dy [T, M] -> dx [T, M] and do [T, H D] (both written), and added to the gradients. `kept` null: recomputed
// from x, o.
void attention_output_backward(const LayerTensors& layer, DecoderTensors& gradients, const at::Tensor& x_TM,
                               const at::Tensor& o_TA, const at::Tensor& dy_TM, AttentionOutputKept* kept,
                               at::Tensor dx_TM, at::Tensor do_TA);

}  // namespace trireme
