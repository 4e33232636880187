// The gated delta rule (kernels/delta_rule.h) and the convolution before it (kernels/causal_convolution.h) as torch
// operators, what python/trireme/delta_rule.py and causal_convolution.py run:
//
//   delta_rule_forward    q_BSKD, k_BSKD, v_BSVD, decay_BSV, beta_BSV   -> o_BSVD; states_GBVDD, empty if not kept
//   delta_rule_backward   d_o_BSVD, the same, states_GBVDD              -> dq, dk, dv, ddecay, dbeta
//   causal_convolution_forward    x_BSC, weight_CW                      -> y_BSC
//   causal_convolution_backward   dy_BSC, x_BSC, weight_CW              -> dx_BSC, dweight_CW in fp32 or fp64
//
// Every rank computes its own heads of the whole sample, so there is no group here.
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <torch/library.h>

#include "trireme/base/error.h"
#include "trireme/kernels/causal_convolution.h"
#include "trireme/kernels/delta_rule.h"
#include "trireme/kernels/document_begins.h"
#include "trireme/kernels/token_ops.h"

#include "python/operators/given_documents.h"
#include "python/operators/operator_call.h"

namespace trireme {
namespace {

// Of the samples of x [B, S, ...], on its device.
at::Tensor begins_of(const std::vector<at::Tensor>& cu_seqlens, const at::Tensor& x) {
  const std::vector<Documents> documents = given_documents(cu_seqlens);
  TRIREME_ASSERT(documents.empty() || std::ssize(documents) == x.size(0), "documents of ", documents.size(),
                 " samples, expected ", x.size(0));
  for (const Documents& of_sample : documents)
    TRIREME_ASSERT(of_sample.tokens() == x.size(1), "documents of ", of_sample.tokens(), " tokens, expected ",
                   x.size(1));
  const at::Tensor begins_BS = document_begins(documents);
  return begins_BS.defined() ? begins_BS.to(x.device()) : begins_BS;
}

std::tuple<at::Tensor, at::Tensor> delta_rule_forward(const at::Tensor& q, const at::Tensor& k,
                                                      const at::Tensor& v, const at::Tensor& decay,
                                                      const at::Tensor& beta, at::IntArrayRef key_of_value,
                                                      const std::vector<at::Tensor>& cu_seqlens,
                                                      bool keep_states) {
  return call_operator(q, [&] {
    const DeltaRuleSpec spec{.key_of_value = key_of_value.vec(),
                             .document_begins_BS = begins_of(cu_seqlens, q)};
    DeltaRuleOutput output =
        delta_rule({q, k, v, decay, beta}, spec, keep_states ? DeltaStates::kept : DeltaStates::dropped);
    if (!keep_states) output.states_GBVDD = at::empty({0}, v.options());
    return std::make_tuple(output.o_BSVD, output.states_GBVDD);
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward_of_delta_rule(
    const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& decay, const at::Tensor& beta, const at::Tensor& states, at::IntArrayRef key_of_value,
    const std::vector<at::Tensor>& cu_seqlens) {
  return call_operator(q, [&] {
    const DeltaRuleSpec spec{.key_of_value = key_of_value.vec(),
                             .document_begins_BS = begins_of(cu_seqlens, q)};
    const DeltaRuleGradients d = delta_rule_backward(d_o, {q, k, v, decay, beta}, states, spec);
    return std::make_tuple(d.dq_BSKD, d.dk_BSKD, d.dv_BSVD, d.ddecay_BSV, d.dbeta_BSV);
  });
}

at::Tensor causal_convolution_forward(const at::Tensor& x, const at::Tensor& weight,
                                      const std::vector<at::Tensor>& cu_seqlens) {
  return call_operator(x, [&] { return causal_convolution(x, weight, begins_of(cu_seqlens, x)); });
}

std::tuple<at::Tensor, at::Tensor> backward_of_causal_convolution(const at::Tensor& dy, const at::Tensor& x,
                                                                  const at::Tensor& weight,
                                                                  const std::vector<at::Tensor>& cu_seqlens) {
  return call_operator(x, [&] {
    const at::Tensor dx = at::empty(x.sizes(), x.options());
    const at::Tensor dweight = at::zeros(weight.sizes(), weight.options().dtype(compute_dtype(weight)));
    causal_convolution_backward(dy, x, weight, begins_of(cu_seqlens, x), dx, dweight);
    return std::make_tuple(dx, dweight);
  });
}

// Of CPU and CUDA alike.
void implement(torch::Library& library) {
  library.impl("delta_rule_forward", delta_rule_forward);
  library.impl("delta_rule_backward", backward_of_delta_rule);
  library.impl("causal_convolution_forward", causal_convolution_forward);
  library.impl("causal_convolution_backward", backward_of_causal_convolution);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def(
      "delta_rule_forward(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, int[] key_of_value, "
      "Tensor[] cu_seqlens, bool keep_states) -> (Tensor, Tensor)");
  library.def(
      "delta_rule_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, Tensor "
      "states, "
      "int[] key_of_value, Tensor[] cu_seqlens) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def("causal_convolution_forward(Tensor x, Tensor weight, Tensor[] cu_seqlens) -> Tensor");
  library.def(
      "causal_convolution_backward(Tensor dy, Tensor x, Tensor weight, Tensor[] cu_seqlens) -> (Tensor, "
      "Tensor)");
}

TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  implement(library);
}

TORCH_LIBRARY_IMPL(trireme, CUDA, library) {
  implement(library);
}

}  // namespace trireme
