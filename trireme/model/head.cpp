#include "trireme/model/head.h"

#include "trireme/memory/token_tiles.h"
#include "trireme/model/linear.h"
#include "trireme/model/token_ops.h"

namespace trireme {

at::Tensor head_loss(const HeadTensors& weights, const HeadOptions& options, const at::Tensor& x_TM,
                     const at::Tensor& targets,
                     const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) {
  at::Tensor loss = at::zeros({x_TM.size(0)}, x_TM.options().dtype(at::kFloat));
  for_tiles(x_TM.size(0), options.tile_tokens, [&](int64_t begin, int64_t count) {
    const at::Tensor normed =
        rms_norm(x_TM.narrow(0, begin, count), weights.norm, options.eps, weights.matrix.scalar_type());
    at::Tensor logits = linear_forward(normed, weights.matrix, {});
    if (on_logits) on_logits(begin, logits);
    at::Tensor tile_loss = loss.narrow(0, begin, count);
    cross_entropy(logits, targets.narrow(0, begin, count), tile_loss, std::nullopt);
  });
  return loss;
}

at::Tensor head_loss_and_gradient(const HeadTensors& weights, const HeadOptions& options, at::Tensor& x_TM,
                                  const at::Tensor& targets, double scale, HeadTensors& gradients) {
  at::Tensor loss = at::zeros({x_TM.size(0)}, x_TM.options().dtype(at::kFloat));
  at::Tensor none;
  for_tiles(x_TM.size(0), options.tile_tokens, [&](int64_t begin, int64_t count) {
    const at::Tensor x = x_TM.narrow(0, begin, count);
    const at::Tensor normed = rms_norm(x, weights.norm, options.eps, weights.matrix.scalar_type());
    at::Tensor logits = linear_forward(normed, weights.matrix, {});
    at::Tensor tile_loss = loss.narrow(0, begin, count);
    cross_entropy(logits, targets.narrow(0, begin, count), tile_loss, scale);
    add_linear_gradient(gradients.matrix, none, logits, normed);
    const at::Tensor dnormed = at::mm(logits, weights.matrix);
    at::Tensor dx = at::zeros(x.sizes(), dnormed.options());
    rms_norm_backward(dnormed, x, weights.norm, options.eps, dx, gradients.norm);
    x.copy_(dx);
  });
  return loss;
}

}  // namespace trireme
