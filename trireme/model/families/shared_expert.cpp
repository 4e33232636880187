#include "trireme/model/families/shared_expert.h"

#include <optional>
#include <utility>

#include "trireme/kernels/token_ops.h"
#include "trireme/model/adapted_linear.h"
#include "trireme/model/families/decoder_units.h"
#include "trireme/model/families/gated_act.h"

namespace trireme::decoder {
namespace {

// In fp32 (fp64 of fp64); undefined: 1.
at::Tensor share_of_tokens(const UnitWeights& w, const at::Tensor& normed_TM) {
  if (!w[kSharedGate].defined()) return {};
  return adapted_linear(normed_TM, w, kSharedGate, std::nullopt).to(compute_dtype(normed_TM)).sigmoid_();
}

}  // namespace

at::Tensor shared_expert_act(const ModelConfig& config, const UnitWeights& w, const at::Tensor& normed_TM,
                             const at::Tensor& kept_T2I) {
  at::Tensor act_TI = gated_act(config, w, kSharedGateUp, std::nullopt, normed_TM, kept_T2I);
  const at::Tensor share_T1 = share_of_tokens(w, normed_TM);
  if (share_T1.defined()) act_TI.mul_(share_T1.to(act_TI.scalar_type()));
  return act_TI;
}

void shared_expert_backward(const ModelConfig& config, const UnitWeights& w, UnitGradients& gradients,
                            const at::Tensor& normed_TM, const at::Tensor& ddown_TM, at::Tensor kept_T2I,
                            at::Tensor& dnormed_TM) {
  at::Tensor gate_up_T2I =
      kept_T2I.defined() ? std::move(kept_T2I) : adapted_linear(normed_TM, w, kSharedGateUp, std::nullopt);
  const at::Tensor share_T1 = share_of_tokens(w, normed_TM);
  at::Tensor dlogit_T1;
  {
    at::Tensor dact_TI = adapted_linear_backward(ddown_TM, w, kSharedDown);
    const at::Tensor factor_T1 = share_T1.defined() ? share_T1.to(dact_TI.scalar_type()) : at::Tensor();
    if (factor_T1.defined()) dact_TI.mul_(factor_T1);
    at::Tensor act_TI = glu_backward(config.gate, dact_TI, gate_up_T2I);
    if (factor_T1.defined()) {
      // share d(share) is the product of act and d(act).
      const at::Tensor weighted_dshare_T1 =
          dact_TI.mul_(act_TI).sum(1, /*keepdim=*/true, share_T1.scalar_type());
      dlogit_T1 = (weighted_dshare_T1 * (1 - share_T1)).to(normed_TM.scalar_type());
      act_TI.mul_(factor_T1);
    }
    add_adapted_linear_gradients(gradients, w, kSharedDown, std::nullopt, ddown_TM, act_TI);
  }
  const auto back = [&](size_t matrix, const at::Tensor& d_Tn) {
    add_adapted_linear_gradients(gradients, w, matrix, std::nullopt, d_Tn, normed_TM);
    at::Tensor dx_TM = adapted_linear_backward(d_Tn, w, matrix);
    if (dnormed_TM.defined())
      dnormed_TM.add_(dx_TM);
    else
      dnormed_TM = std::move(dx_TM);
  };
  back(kSharedGateUp, gate_up_T2I);  // which is its gradient now
  if (dlogit_T1.defined()) back(kSharedGate, dlogit_T1);
}

}  // namespace trireme::decoder
