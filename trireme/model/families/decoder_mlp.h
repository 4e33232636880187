// The MLP of a decoder's layer, on a tile of T tokens: y = x1 + MLP(norm(x1)). Of one gated MLP for all tokens
// (gated_mlp.cpp), of a mixture of experts (expert_mlp.cpp), or of both (experts_beside_mlp.cpp).
#pragma once

#include <memory>

#include <ATen/ATen.h>

#include "trireme/model/model_config.h"
#include "trireme/model/unit_gradients.h"
#include "trireme/model/unit_weights.h"

namespace trireme::decoder {

struct MlpGradients {
  at::Tensor dnormed_TM;
  at::Tensor dx1_TM;  // what reaches x1 beside normed and dy; undefined: nothing
};

// Holds no weights. Tensors have the tile dtype; normed [T, M] is given to be freed.
class DecoderMlp {
 public:
  virtual ~DecoderMlp() = default;
  DecoderMlp& operator=(DecoderMlp&&) = delete;

  // Values a token that backward may be given, of a layer of the config's intermediate_size.
  // ModelConfig::mlp_kept_width has a layer input's beside them.
  virtual int64_t kept_width() const = 0;
  // x1 [T, M] += MLP(normed). `kept` [T, kept width], contiguous, is filled where defined.
  virtual void forward(const UnitWeights& w, at::Tensor normed_TM, const at::Tensor& kept_TW,
                       at::Tensor& x1_TM) const = 0;
  // From dy [T, M]; and added to the gradients. May write over `kept`; undefined: made again.
  virtual MlpGradients backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& x1_TM,
                                at::Tensor normed_TM, const at::Tensor& dy_TM,
                                const at::Tensor& kept_TW) const = 0;
};

// They refer to `config`.
std::unique_ptr<DecoderMlp> make_gated_mlp(const ModelConfig& config);
std::unique_ptr<DecoderMlp> make_expert_mlp(const ModelConfig& config);
std::unique_ptr<DecoderMlp> make_experts_beside_mlp(const ModelConfig& config);

}  // namespace trireme::decoder
