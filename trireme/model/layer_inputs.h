// What each layer is told of a token beside x (Gemma 4 E2B and E4B), on a tile of T tokens: from the tokens and
// from x as the embedding gives it, for L layers P = ModelConfig::layer_input_width values each.
#pragma once

#include <ATen/ATen.h>

#include "trireme/model/unit_gradients.h"
#include "trireme/model/unit_weights.h"

namespace trireme {

class LayerInputs {
 public:
  virtual ~LayerInputs() = default;
  LayerInputs& operator=(LayerInputs&&) = delete;

  // tokens [T], x [T, M] -> inputs [L, T, P] (written). `weights` of kLayerInputsUnit.
  virtual void forward(const UnitWeights& weights, const at::Tensor& tokens, const at::Tensor& x_TM,
                       const at::Tensor& inputs_LTP) const = 0;
  // d(inputs) [L, T, P] -> added to dx [T, M] and to the gradients (fp32).
  virtual void backward(const UnitWeights& weights, UnitGradients& gradients, const at::Tensor& tokens,
                        const at::Tensor& x_TM, const at::Tensor& dinputs_LTP, at::Tensor dx_TM) const = 0;
};

}  // namespace trireme
