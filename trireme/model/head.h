// The end of the model: what turns x into what the output matrix multiplies, that matrix, cross entropy, over
// tiles of tokens, so that the logits of a sequence never exist together; loss and gradients of a tile are
// made in one go while its logits are there.
//
//   decoders   x_TM -> RMS norm -> matrix -> logits_TV
//   BERT       x_TM -> dense -> GELU -> layer norm -> matrix + bias -> logits_TV
#pragma once

#include <functional>

#include <ATen/ATen.h>

namespace trireme {

struct HeadTensors {
  at::Tensor norm;    // [M]
  at::Tensor matrix;  // [V, M]: lm_head, or the embedding when tied
  // Of BERT; undefined for decoders.
  at::Tensor norm_bias = {};   // [M]
  at::Tensor dense = {};       // [M, M]
  at::Tensor dense_bias = {};  // [M]
  at::Tensor bias = {};        // [V]
};

struct HeadOptions {
  double eps = 1e-6;
  int64_t tile_tokens = 512;
};

// x [T, M] (storage dtype), targets [T] int64 on x's device (-100: none) -> each token's loss [T] fp32.
// `on_logits`, when given, sees every tile's logits.
at::Tensor head_loss(
    const HeadTensors& weights, const HeadOptions& options, const at::Tensor& x_TM, const at::Tensor& targets,
    const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits = nullptr);

// The same, and the gradient of (sum of losses * scale): added to the gradients (fp32), and d(x) [T, M] over
// `x` itself.
at::Tensor head_loss_and_gradient(const HeadTensors& weights, const HeadOptions& options, at::Tensor& x_TM,
                                  const at::Tensor& targets, double scale, HeadTensors& gradients);

}  // namespace trireme
