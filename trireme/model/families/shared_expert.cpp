#include "trireme/model/families/shared_expert.h"

#include <optional>
#include <utility>

#include "trireme/kernels/token_ops.h"
#include "trireme/model/adapted_linear.h"
#include "trireme/model/families/decoder_units.h"

namespace trireme::decoder {
namespace {

// In fp32 (fp64 of fp64).
at::Tensor share_of_tokens(const UnitWeights& w, const at::Tensor& normed_TM) {
  return adapted_linear(normed_TM, w, kSharedGate, std::nullopt).to(compute_dtype(normed_TM)).sigmoid_();
}

}  // namespace

void add_shared_expert(const ModelConfig& config, const UnitWeights& w, const at::Tensor& normed_TM,
                       const at::Tensor& kept_T2I, at::Tensor& x1_TM) {
  at::Tensor act_TI;
  {
    at::Tensor gate_up_T2I =
        kept_T2I.defined() ? kept_T2I
                           : at::empty({normed_TM.size(0), w[kSharedGateUp].size(0)}, normed_TM.options());
    adapted_linear_into(gate_up_T2I, normed_TM, w, kSharedGateUp, std::nullopt);
    act_TI = glu(config.gate, gate_up_T2I);
  }
  act_TI.mul_(share_of_tokens(w, normed_TM).to(act_TI.scalar_type()));
  add_adapted_linear(x1_TM, act_TI, w, kSharedDown, std::nullopt);
}

void shared_expert_backward(const ModelConfig& config, const UnitWeights& w, UnitGradients& gradients,
                            const at::Tensor& normed_TM, const at::Tensor& dy_TM, at::Tensor kept_T2I,
                            at::Tensor& dnormed_TM) {
  at::Tensor gate_up_T2I =
      kept_T2I.defined() ? std::move(kept_T2I) : adapted_linear(normed_TM, w, kSharedGateUp, std::nullopt);
  const at::Tensor share_T1 = share_of_tokens(w, normed_TM);
  const at::Tensor factor_T1 = share_T1.to(normed_TM.scalar_type());
  at::Tensor dlogit_T1;
  {
    const at::Tensor dact_TI = adapted_linear_backward(dy_TM, w, kSharedDown).mul_(factor_T1);
    at::Tensor act_TI = glu_backward(config.gate, dact_TI, gate_up_T2I);
    // share d(share) is the product of act and d(act).
    const at::Tensor weighted_dshare_T1 =
        dact_TI.mul_(act_TI).sum(1, /*keepdim=*/true, share_T1.scalar_type());
    dlogit_T1 = (weighted_dshare_T1 * (1 - share_T1)).to(normed_TM.scalar_type());
    act_TI.mul_(factor_T1);
    add_adapted_linear_gradients(gradients, w, kSharedDown, std::nullopt, dy_TM, act_TI);
  }
  // gate|up is its gradient now.
  add_adapted_linear_gradients(gradients, w, kSharedGateUp, std::nullopt, gate_up_T2I, normed_TM);
  dnormed_TM.add_(adapted_linear_backward(gate_up_T2I, w, kSharedGateUp));
  add_adapted_linear_gradients(gradients, w, kSharedGate, std::nullopt, dlogit_T1, normed_TM);
  dnormed_TM.add_(adapted_linear_backward(dlogit_T1, w, kSharedGate));
}

}  // namespace trireme::decoder
