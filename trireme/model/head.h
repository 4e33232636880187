// The end of a model: what turns x into what the output matrix multiplies, which is the family's; that
// matrix, and cross entropy, over tiles of tokens, so that the logits of a sequence never exist together.
// Loss and gradients of a tile are made in one go while its logits are there.
//
//   x_TM -> (the family's norm) -> matrix_VM (+ bias) (-> cap tanh(. / cap)) -> logits_TV
#pragma once

#include <functional>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/model/unit_gradients.h"
#include "trireme/model/unit_weights.h"

namespace trireme {

class Head {
 public:
  virtual ~Head() = default;
  Head& operator=(Head&&) = delete;

  // x [T, M] (storage dtype), targets [T] int64 on x's device (-100: none) -> each token's loss [T] fp32.
  // `weights` have the output matrix also where it is the embedding's. `on_logits`, when given, sees every
  // tile's logits.
  at::Tensor loss(
      const UnitWeights& weights, int64_t tile_tokens, const at::Tensor& x_TM, const at::Tensor& targets,
      const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits = nullptr) const;
  // The same, and the gradient of (sum of losses * scale): added to the gradients (fp32), and d(x) [T, M]
  // over `x` itself.
  at::Tensor loss_and_gradient(const UnitWeights& weights, int64_t tile_tokens, at::Tensor& x_TM,
                               const at::Tensor& targets, double scale, UnitGradients& gradients) const;

 protected:
  // ModelConfig::logit_cap.
  explicit Head(double logit_cap = 0) : logit_cap_(logit_cap) {}

  struct Tile {
    at::Tensor normed;             // [T, M], what the matrix multiplies
    std::vector<at::Tensor> kept;  // for backward, which may write over it
  };
  virtual Tile before_matrix(const UnitWeights& weights, const at::Tensor& x_TM) const = 0;
  // d(normed) -> d(x), of d(normed)'s dtype.
  virtual at::Tensor before_matrix_backward(const UnitWeights& weights, UnitGradients& gradients,
                                            const at::Tensor& x_TM, Tile& tile,
                                            const at::Tensor& dnormed) const = 0;

 private:
  at::Tensor logits(const UnitWeights& weights, const at::Tensor& normed) const;

  double logit_cap_;
};

}  // namespace trireme
