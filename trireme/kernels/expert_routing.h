// Which experts of a mixture a token goes to, and by how much each counts (arXiv 1701.06538, section 2.1):
//
//   logits_TE -> softmax over all experts (fp32) -> the k largest: experts_Tk, weights_Tk
//
// T tokens of a tile, E experts, k of them a token. The weights of some models are divided by their sum, which
// is a softmax over the chosen logits alone.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace trireme {

struct RoutingRule {
  int64_t experts_per_token = 0;    // k
  bool weights_sum_to_one = false;  // divided by their sum
};

struct Routing {
  at::Tensor experts_Tk;  // int64
  at::Tensor weights_Tk;  // fp32; fp64 of fp64 logits
};

// logits [T, E] of any float dtype; of two that are equal the lower expert comes first.
Routing route(const at::Tensor& logits_TE, const RoutingRule& rule);

// From w dL/dw of the chosen weights [T, k] -> dL/dlogits [T, E] of their dtype. No division by a weight: one
// that underflowed has no gradient. `logits` are read where weights do not sum to one, else only their sizes.
at::Tensor route_backward(const at::Tensor& weighted_dweights_Tk, const Routing& routing,
                          const at::Tensor& logits_TE, const RoutingRule& rule);

}  // namespace trireme
