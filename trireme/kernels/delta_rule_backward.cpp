// Backward of the gated delta rule, segments from the last to the first. With the letters of
// delta_rule_segment.h, dS1 the gradient of the state after a chunk and dS0 of that before it:
//
//   dU = P' do + w k dS1     dR = (I + A)^-T dU     dS0 = c_l dS1 + (c q)' do - (beta c k)' dR
//
// is the recurrence; what follows from it is computed for all chunks of the segment at once. Every exponent's
// gradient is that of its factor times the factor: no decay is divided by.
#include <ATen/core/grad_mode.h>

#include "trireme/base/error.h"
#include "trireme/kernels/delta_recurrence.h"
#include "trireme/kernels/delta_rule.h"
#include "trireme/kernels/delta_rule_segment.h"

namespace trireme {
namespace {

at::Tensor row_dots(const at::Tensor& a, const at::Tensor& b) {
  return (a * b).sum(-1);
}

// What the recurrences of one segment leave; N = B V.
struct SegmentPass {
  at::Tensor states_nNDD;    // S0 of each chunk
  at::Tensor updates_nNCD;   // U
  at::Tensor d_states_nNDD;  // dS1 of each chunk
  at::Tensor d_both_nNCD;    // [dR; do]
};

class SegmentBackward {
 public:
  SegmentBackward(const DeltaRuleCall& call, int64_t index) : call_(call), s_(call.segment(index)) {}

  // d_state becomes the gradient of the state before the segment.
  void run(const at::Tensor& d_o_BSVD, const at::Tensor& state_NDD, const at::Tensor& d_state_NDD,
           const DeltaRuleGradients& to) const {
    SegmentPass pass;
    run_forwards(state_NDD, pass);
    run_backwards(d_o_BSVD, d_state_NDD, pass);
    write_gradients(pass, to);
  }

 private:
  int64_t heads() const { return call_.sizes().batch * call_.sizes().value_heads; }
  at::Tensor by_head(const at::Tensor& x_nN) const {
    return x_nN.unflatten(1, {call_.sizes().batch, call_.sizes().value_heads});
  }

  void run_forwards(const at::Tensor& state_NDD, SegmentPass& pass) const {
    const DeltaRuleSizes& z = call_.sizes();
    at::Tensor residuals_nNCD =
        at::empty({s_.chunks, heads(), kDeltaChunk_tokens, z.value_width}, call_.options());  // R
    at::Tensor values = by_head(residuals_nNCD);
    at::mul_out(values, s_.v_nBVCD, s_.beta_nBVC1);
    pass.updates_nNCD = at::empty_like(residuals_nNCD);
    pass.states_nNDD = at::empty({s_.chunks, heads(), z.key_width, z.value_width}, call_.options());
    delta_forwards(s_, residuals_nNCD, pass.updates_nNCD, state_NDD.clone(), pass.states_nNDD);
  }

  void run_backwards(const at::Tensor& d_o_BSVD, const at::Tensor& d_state_NDD, SegmentPass& pass) const {
    const DeltaRuleSizes& z = call_.sizes();
    pass.d_both_nNCD =
        at::empty({s_.chunks, heads(), 2 * kDeltaChunk_tokens, z.value_width}, call_.options());
    const at::Tensor d_o_nNCD = pass.d_both_nNCD.narrow(2, kDeltaChunk_tokens, kDeltaChunk_tokens);
    by_head(d_o_nNCD).copy_(call_.in_chunks(d_o_BSVD, s_));
    const at::Tensor d_updates_nNCD = at::matmul(s_.scores_nBVCC.flatten(1, 2).mT(), d_o_nNCD);
    pass.d_states_nNDD = at::empty_like(pass.states_nNDD);
    delta_backwards(s_, d_updates_nNCD, pass.d_both_nNCD, d_state_NDD, pass.d_states_nNDD);
  }

  void write_gradients(const SegmentPass& pass, const DeltaRuleGradients& to) const {
    const at::Tensor d_residuals_nBVCD = by_head(pass.d_both_nNCD.narrow(2, 0, kDeltaChunk_tokens));
    call_.put(to.dv_BSVD, d_residuals_nBVCD * s_.beta_nBVC1, s_);
    at::Tensor d_beta_nBVC = row_dots(d_residuals_nBVCD, s_.v_nBVCD);

    // Of the chunk's products, both [n, B, V, C, C], and of their exponents G_i - G_j.
    const at::Tensor d_products_nBVCC = by_head(at::matmul(pass.d_both_nNCD, pass.updates_nNCD.mT()));
    at::Tensor d_inverse_nBVCC = d_products_nBVCC.narrow(3, 0, kDeltaChunk_tokens),
               d_scores_nBVCC = d_products_nBVCC.narrow(3, kDeltaChunk_tokens, kDeltaChunk_tokens);
    at::Tensor d_exponents_nBVCC = d_inverse_nBVCC * s_.overlap_nBVCC;
    d_beta_nBVC.sub_(d_exponents_nBVCC.sum(-1));
    d_exponents_nBVCC.mul_(s_.beta_nBVC1).neg_().addcmul_(d_scores_nBVCC, s_.scores_nBVCC);
    // G_i - G_i has no gradient; beside a strong decay its two equal sums would leave their rounding alone.
    d_exponents_nBVCC.tril_(-1);
    at::Tensor d_sums_nBVC = d_exponents_nBVCC.sum(-1).sub_(d_exponents_nBVCC.sum(-2));
    const at::Tensor d_qk_nBKCC = call_.summed(d_scores_nBVCC.mul_(s_.decay_nBVCC));
    at::Tensor d_kk_nBKCC =
        call_.summed(d_inverse_nBVCC.mul_(s_.decay_nBVCC).mul_(s_.beta_nBVC1)).tril(-1).neg_();
    d_kk_nBKCC = d_kk_nBKCC + d_kk_nBKCC.mT();

    // Of what was read from the state and written to it.
    const at::Tensor d_reads_nBVCD = by_head(at::matmul(pass.d_both_nNCD, pass.states_nNDD.mT()));
    at::Tensor from_k_nBVCD = d_reads_nBVCD.narrow(3, 0, kDeltaChunk_tokens),
               from_q_nBVCD = d_reads_nBVCD.narrow(3, kDeltaChunk_tokens, kDeltaChunk_tokens);
    from_k_nBVCD.mul_(s_.carried_nBVC1);
    from_q_nBVCD.mul_(s_.carried_nBVC1);
    at::Tensor written_nBVCD = by_head(at::matmul(pass.updates_nNCD, pass.d_states_nNDD.mT()));
    written_nBVCD.mul_(s_.kept_nBVC1);
    const at::Tensor k_dots_nBVC = dots_with(s_.k, from_k_nBVCD),
                     kept_dots_nBVC = dots_with(s_.k, written_nBVCD);
    d_beta_nBVC.sub_(k_dots_nBVC);
    d_sums_nBVC.addcmul_(k_dots_nBVC, s_.beta_nBVC1.squeeze(-1), -1)
        .add_(dots_with(s_.q, from_q_nBVCD))
        .sub_(kept_dots_nBVC);
    const at::Tensor state_dots_nBV1 = by_head(at::matmul(pass.states_nNDD.flatten(2).unsqueeze(2),
                                                          pass.d_states_nNDD.flatten(2).unsqueeze(3)))
                                           .squeeze(-1);
    d_sums_nBVC.select(3, kDeltaChunk_tokens - 1)
        .add_(kept_dots_nBVC.sum(-1))
        .addcmul_(state_dots_nBV1.squeeze(-1),
                  s_.carried_nBVC1.squeeze(-1).select(3, kDeltaChunk_tokens - 1));

    at::Tensor d_q_nBKCD = call_.summed(from_q_nBVCD) + at::matmul(d_qk_nBKCC, s_.k.rows_nBKCD);
    at::Tensor d_k_nBKCD = call_.summed(written_nBVCD.addcmul_(from_k_nBVCD, s_.beta_nBVC1, -1));
    d_k_nBKCD.add_(at::matmul(d_kk_nBKCC, s_.k.rows_nBKCD))
        .add_(at::matmul(d_qk_nBKCC.mT(), s_.q.rows_nBKCD));
    call_.put(to.dq_BSKD, call_.of_inputs(std::move(d_q_nBKCD), s_.q), s_);
    call_.put(to.dk_BSKD, call_.of_inputs(std::move(d_k_nBKCD), s_.k), s_);
    call_.put(to.dbeta_BSV.unsqueeze(-1), d_beta_nBVC.unsqueeze(-1), s_);
    // g_j is in the sums of its document from j on.
    const at::Tensor d_decay_nBVC = at::matmul(d_sums_nBVC.to(at::kDouble), s_.document_nBCC);
    call_.put(to.ddecay_BSV.unsqueeze(-1), d_decay_nBVC.unsqueeze(-1), s_);
  }

  at::Tensor dots_with(const UnitRows& unit, const at::Tensor& x_nBVCD) const {
    return row_dots(unit.rows_nBKCD.unsqueeze(3), call_.grouped(x_nBVCD)).flatten(2, 3);
  }

  const DeltaRuleCall& call_;
  const DeltaSegment s_;
};

}  // namespace

DeltaRuleGradients delta_rule_backward(const at::Tensor& d_o_BSVD, const DeltaRuleInputs& inputs,
                                       const at::Tensor& states_GBVDD, const DeltaRuleSpec& spec) {
  const at::NoGradGuard no_grad;
  const DeltaRuleCall call(inputs, spec);
  const DeltaRuleSizes& z = call.sizes();
  TRIREME_ASSERT(d_o_BSVD.sizes() == inputs.v_BSVD.sizes(), "delta rule: d_o of ", d_o_BSVD.sizes(),
                 ", v of ", inputs.v_BSVD.sizes());
  const auto like = [](const at::Tensor& x) { return at::zeros(x.sizes(), x.options()); };
  DeltaRuleGradients gradients{like(inputs.q_BSKD), like(inputs.k_BSKD), like(inputs.v_BSVD),
                               like(inputs.decay_BSV), like(inputs.beta_BSV)};
  if (call.empty()) return gradients;
  TRIREME_ASSERT(states_GBVDD.defined() && states_GBVDD.dim() == 5 && states_GBVDD.size(0) == z.segments() &&
                     states_GBVDD.scalar_type() == call.options().dtype().toScalarType(),
                 "delta rule: states that are not of ", z.segments(), " segments");
  const at::Tensor d_state_NDD =
      at::zeros({z.batch * z.value_heads, z.key_width, z.value_width}, call.options());
  for (int64_t index = z.segments() - 1; index >= 0; --index)
    SegmentBackward(call, index).run(d_o_BSVD, states_GBVDD[index].flatten(0, 1), d_state_NDD, gradients);
  return gradients;
}

}  // namespace trireme
