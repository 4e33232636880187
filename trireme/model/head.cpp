#include "trireme/model/head.h"

#include "trireme/kernels/linear.h"
#include "trireme/kernels/product.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/kernels/token_tiles.h"

namespace trireme {

at::Tensor Head::logits(const UnitWeights& weights, const at::Tensor& normed) const {
  at::Tensor logits = linear_forward(normed, weights[kOutputMatrix], weights[kOutputBias]);
  if (logit_cap_ > 0) cap_logits(logits, logit_cap_);
  return logits;
}

at::Tensor Head::loss(
    const UnitWeights& weights, int64_t tile_tokens, const at::Tensor& x_TM, const at::Tensor& targets,
    const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) const {
  at::Tensor loss = at::zeros({x_TM.size(0)}, x_TM.options().dtype(at::kFloat));
  for_tiles(x_TM.size(0), tile_tokens, [&](int64_t begin, int64_t count) {
    at::Tensor logits = this->logits(weights, before_matrix(weights, x_TM.narrow(0, begin, count)).normed);
    if (on_logits) on_logits(begin, logits);
    at::Tensor tile_loss = loss.narrow(0, begin, count);
    cross_entropy(logits, targets.narrow(0, begin, count), tile_loss, std::nullopt, logit_cap_);
  });
  return loss;
}

at::Tensor Head::loss_and_gradient(const UnitWeights& weights, int64_t tile_tokens, at::Tensor& x_TM,
                                   const at::Tensor& targets, double scale, UnitGradients& gradients) const {
  at::Tensor loss = at::zeros({x_TM.size(0)}, x_TM.options().dtype(at::kFloat));
  for_tiles(x_TM.size(0), tile_tokens, [&](int64_t begin, int64_t count) {
    const at::Tensor x = x_TM.narrow(0, begin, count);
    Tile tile = before_matrix(weights, x);
    at::Tensor logits = this->logits(weights, tile.normed);
    at::Tensor tile_loss = loss.narrow(0, begin, count);
    cross_entropy(logits, targets.narrow(0, begin, count), tile_loss, scale, logit_cap_);
    gradients.add_linear(kOutputMatrix, kOutputBias, logits, tile.normed);
    const at::Tensor dnormed = product(logits, weights[kOutputMatrix]);
    x.copy_(before_matrix_backward(weights, gradients, x, tile, dnormed));
  });
  return loss;
}

}  // namespace trireme
