// The two token-wise parts of a layer around attention, forward and backward written out, on a tile of T
// tokens:
//
//   before attention   x_TM -> q|k|v, ready for attention: qkv_TND; what gates its output: gate_TA
//   after attention    x_TM, o_TA, gate_TA -> (gated) out projection, residual, MLP, residual: y_TM
//
// T tokens of the tile, M hidden width, N = H + 2K heads of D, A = H D. What lies inside a part is the
// family's (families/). A layer with a DeltaNet in place of attention has its columns for q|k|v
// (delta_heads.h), as one head of them all, and A = V Dv. One law holds for all: no matmul's forward runs
// more than twice in a step, but the q and k projection of models that norm q and k. Tensors between tiles
// have the storage dtype; inside a tile everything has the tile dtype, which is the dtype of the weights.
// Gradients of weights are added in fp32.
#pragma once

#include <ATen/ATen.h>

#include "trireme/model/attention_heads.h"
#include "trireme/model/delta_net.h"
#include "trireme/model/rotary.h"
#include "trireme/model/unit_gradients.h"
#include "trireme/model/unit_weights.h"

namespace trireme {

struct LayerTensors {
  UnitWeights weights;
  // Of models that rotate: rows are the positions of this rank's tokens; tile row t has row (first_row + t) %
  // rows.
  RotaryTable rotary;
  AttentionHeads heads = {};
  const DeltaNet* delta_net = nullptr;  // in place of attention
  int64_t mlp_kept_width = 0;           // ModelConfig's, of this layer
  // Of models that have them, a row for each of this rank's tokens: what this layer is told beside x, over which
  // backward writes its gradient; and where AttentionHeads::share_keys, the earlier layer's keys and values.
  at::Tensor input_RP = {};
  at::Tensor shared_kv_RKD = {};  // [R, 2K, D]
};

// What the backward of the part after attention reads, when it is kept: rows of whole-sequence buffers in the
// tile dtype, contiguous. Backward is given the rows that forward filled, and may write over them.
struct KeptAfterAttention {
  at::Tensor x1;   // [T, M]; or what the family makes it of
  at::Tensor mlp;  // [T, LayerTensors::mlp_kept_width]
};

// The arithmetic of all layers of a model; holds no weights.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer& operator=(Layer&&) = delete;

  // x [T, M] -> qkv [T, N, D] and gate [T, A] (written). Here and below `gate` is undefined where the layer's
  // output is not gated.
  virtual void before_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                                        const at::Tensor& qkv_TND, const at::Tensor& gate_TA) const = 0;
  // dqkv [T, N, D], d(gate) [T, A] -> added to dx [T, M] and to the gradients.
  virtual void before_attention_backward(const LayerTensors& layer, UnitGradients& gradients,
                                         const at::Tensor& x_TM, int64_t first_row,
                                         const at::Tensor& dqkv_TND, const at::Tensor& dgate_TA,
                                         at::Tensor dx_TM) const = 0;
  // x [T, M], o and gate [T, A] -> y [T, M] (written). `kept`, when not null, is filled.
  virtual void after_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                                       const at::Tensor& o_TA, const at::Tensor& gate_TA,
                                       const at::Tensor& y_TM, KeptAfterAttention* kept) const = 0;
  // d(y) [T, M] becomes d(x), do [T, A] is written, d(gate) over the gate, and added to the gradients. `kept`
  // null: made again from x and o.
  virtual void after_attention_backward(const LayerTensors& layer, UnitGradients& gradients,
                                        const at::Tensor& x_TM, int64_t first_row, const at::Tensor& o_TA,
                                        const at::Tensor& gate_TA, const at::Tensor& d_TM,
                                        KeptAfterAttention* kept, at::Tensor do_TA) const = 0;
};

}  // namespace trireme
