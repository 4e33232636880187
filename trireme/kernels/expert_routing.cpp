#include "trireme/kernels/expert_routing.h"

#include "trireme/kernels/token_ops.h"

namespace trireme {

Routing route(const at::Tensor& logits_TE, const RoutingRule& rule) {
  // Not topk, which leaves open whom it takes of equal ones, and may take others in a tile of another size.
  const auto [sorted, order] = at::sort(at::softmax(logits_TE, 1, compute_dtype(logits_TE)), /*stable=*/true,
                                        /*dim=*/1, /*descending=*/true);
  Routing routing{order.narrow(1, 0, rule.experts_per_token).contiguous(),
                  sorted.narrow(1, 0, rule.experts_per_token).contiguous()};
  if (rule.weights_sum_to_one) routing.weights_Tk.div_(routing.weights_Tk.sum(1, /*keepdim=*/true));
  return routing;
}

// With g = w dL/dw: of a softmax over the chosen logits dL/dl = g - w sum(g); of one over all, p being its
// values, g - p sum(g), where g is 0 of experts that were not chosen.
at::Tensor route_backward(const at::Tensor& weighted_dweights_Tk, const Routing& routing,
                          const at::Tensor& logits_TE, const RoutingRule& rule) {
  const at::Tensor sum_T1 = weighted_dweights_Tk.sum(1, /*keepdim=*/true);
  const auto dtype = weighted_dweights_Tk.scalar_type();
  if (rule.weights_sum_to_one) {
    const at::Tensor dchosen_Tk = weighted_dweights_Tk - routing.weights_Tk * sum_T1;
    at::Tensor dlogits_TE = at::zeros(logits_TE.sizes(), logits_TE.options().dtype(dtype));
    dlogits_TE.scatter_(1, routing.experts_Tk, dchosen_Tk);
    return dlogits_TE.to(logits_TE.scalar_type());
  }
  at::Tensor dlogits_TE = at::softmax(logits_TE, 1, dtype).mul_(sum_T1).neg_();
  dlogits_TE.scatter_add_(1, routing.experts_Tk, weighted_dweights_Tk);
  return dlogits_TE.to(logits_TE.scalar_type());
}

}  // namespace trireme
