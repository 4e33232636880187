#include "trireme/model/head.h"

#include "trireme/memory/token_tiles.h"
#include "trireme/model/linear.h"
#include "trireme/model/token_ops.h"

namespace trireme {
namespace {

// What the output matrix multiplies, and what the way back needs beside x.
struct MatrixInput {
  at::Tensor dense;   // [T, M] before the GELU
  at::Tensor act;     // [T, M] behind it
  at::Tensor normed;  // [T, M]
};

MatrixInput matrix_input(const HeadTensors& weights, double eps, const at::Tensor& x) {
  const auto dtype = weights.matrix.scalar_type();
  if (!weights.dense.defined()) return {{}, {}, rms_norm(x, weights.norm, eps, dtype)};
  MatrixInput tile;
  tile.dense = linear_forward(x.to(dtype), weights.dense, weights.dense_bias);
  tile.act = exact_gelu(tile.dense);
  tile.normed = layer_norm(tile.act, weights.norm, weights.norm_bias, eps, dtype);
  return tile;
}

// d(normed) -> d(x), of d(normed)'s dtype.
at::Tensor matrix_input_backward(const HeadTensors& weights, HeadTensors& gradients, double eps,
                                 const at::Tensor& x, MatrixInput& tile, const at::Tensor& dnormed) {
  if (!weights.dense.defined()) {
    at::Tensor dx = at::zeros(x.sizes(), dnormed.options());
    rms_norm_backward(dnormed, x, weights.norm, eps, dx, gradients.norm);
    return dx;
  }
  const auto dtype = dnormed.scalar_type();
  at::Tensor d =
      layer_norm_backward(dnormed, tile.act, weights.norm, eps, dtype, gradients.norm, gradients.norm_bias);
  exact_gelu_backward(d, tile.dense);
  add_linear_gradient(gradients.dense, gradients.dense_bias, d, x.to(dtype));
  return at::mm(d, weights.dense);
}

}  // namespace

at::Tensor head_loss(const HeadTensors& weights, const HeadOptions& options, const at::Tensor& x_TM,
                     const at::Tensor& targets,
                     const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) {
  at::Tensor loss = at::zeros({x_TM.size(0)}, x_TM.options().dtype(at::kFloat));
  for_tiles(x_TM.size(0), options.tile_tokens, [&](int64_t begin, int64_t count) {
    const at::Tensor normed = matrix_input(weights, options.eps, x_TM.narrow(0, begin, count)).normed;
    at::Tensor logits = linear_forward(normed, weights.matrix, weights.bias);
    if (on_logits) on_logits(begin, logits);
    at::Tensor tile_loss = loss.narrow(0, begin, count);
    cross_entropy(logits, targets.narrow(0, begin, count), tile_loss, std::nullopt);
  });
  return loss;
}

at::Tensor head_loss_and_gradient(const HeadTensors& weights, const HeadOptions& options, at::Tensor& x_TM,
                                  const at::Tensor& targets, double scale, HeadTensors& gradients) {
  at::Tensor loss = at::zeros({x_TM.size(0)}, x_TM.options().dtype(at::kFloat));
  for_tiles(x_TM.size(0), options.tile_tokens, [&](int64_t begin, int64_t count) {
    const at::Tensor x = x_TM.narrow(0, begin, count);
    MatrixInput tile = matrix_input(weights, options.eps, x);
    at::Tensor logits = linear_forward(tile.normed, weights.matrix, weights.bias);
    at::Tensor tile_loss = loss.narrow(0, begin, count);
    cross_entropy(logits, targets.narrow(0, begin, count), tile_loss, scale);
    add_linear_gradient(gradients.matrix, gradients.bias, logits, tile.normed);
    const at::Tensor dnormed = at::mm(logits, weights.matrix);
    x.copy_(matrix_input_backward(weights, gradients, options.eps, x, tile, dnormed));
  });
  return loss;
}

}  // namespace trireme
