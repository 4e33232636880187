#include "trireme/model/families/routed_experts.h"

#include <optional>
#include <utility>

#include "trireme/kernels/linear.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/model/families/decoder_units.h"

namespace trireme::decoder {
namespace {

void add_gradients(UnitGradients& gradients, size_t slot, const ExpertRows& rows, const at::Tensor& dy,
                   const at::Tensor& x) {
  if (gradients.frozen()) return;
  const auto [sums, state] = gradients.take_sum(slot);
  add_expert_gradients(rows, sums, dy, x, state);
}

// [T, k] -> [R, 1] in the rows' dtype.
at::Tensor factors_of_rows(const ExpertRows& rows, const at::Tensor& values_Tk, const at::Tensor& like) {
  return gather_choices(rows, values_Tk.to(like.scalar_type()));
}

}  // namespace

RoutedExperts::RoutedExperts(const ModelConfig& config)
    : config_(config), rule_{config.experts_per_token, config.expert_weights_sum_to_one} {}

int64_t RoutedExperts::kept_width() const {
  return 2 * config_.experts_per_token * config_.intermediate_size + config_.num_experts;
}

at::Tensor RoutedExperts::forward(const UnitWeights& w, at::Tensor router_input_TM, at::Tensor x_TM,
                                  const at::Tensor& kept_TW) const {
  Routed routed = route_rows(w, std::move(router_input_TM), std::move(x_TM), kept_TW, /*filled=*/false);
  at::Tensor act_RI = glu(config_.gate, routed.gate_up_R2I);
  routed.kept = {};
  routed.gate_up_R2I = at::Tensor();
  at::Tensor& down_RM = routed.gathered_RM;
  expert_products_into(routed.rows, down_RM, act_RI, w[kDown]);
  act_RI = at::Tensor();
  const at::Tensor& p_Tk = routed.routing.weights_Tk;
  return sum_of_rows(routed.rows, down_RM, routed.scales_Tk.defined() ? p_Tk * routed.scales_Tk : p_Tk);
}

RoutedExperts::InputGradients RoutedExperts::backward(const UnitWeights& w, UnitGradients& gradients,
                                                      const at::Tensor& router_input_TM,
                                                      const at::Tensor& x_TM, const at::Tensor& dy_TM,
                                                      const at::Tensor& kept_TW) const {
  auto [kept, routing, scales_Tk, rows, gathered_RM, gate_up_R2I] =
      route_rows(w, router_input_TM, x_TM, kept_TW, /*filled=*/kept_TW.defined());
  at::Tensor weighted_dweights_Tk;
  {
    at::Tensor dy_RM = gather_rows(rows, dy_TM);
    dy_RM.mul_(factors_of_rows(rows, routing.weights_Tk, dy_RM));
    at::Tensor dact_RI = at::empty({rows.rows(), config_.intermediate_size}, dy_RM.options());
    expert_products_backward_into(rows, dact_RI, dy_RM, w[kDown]);
    at::Tensor act_RI = glu_backward(config_.gate, dact_RI, gate_up_R2I);
    weighted_dweights_Tk = dact_RI.mul_(act_RI)
                               .sum(1, /*keepdim=*/false, compute_dtype(dact_RI))
                               .index_select(0, rows.row_Tk.view({-1}))
                               .view(rows.row_Tk.sizes());
    if (scales_Tk.defined()) {
      // All of a row is linear in its scale, which was left out until here; no scale is divided by.
      at::Tensor of_experts_TE =
          at::zeros({x_TM.size(0), config_.num_experts}, weighted_dweights_Tk.options());
      of_experts_TE.scatter_(1, routing.experts_Tk, weighted_dweights_Tk);
      gradients.to_add(kExpertScale).add_(of_experts_TE.sum(0));
      weighted_dweights_Tk.mul_(scales_Tk);
      const at::Tensor scales_R1 = factors_of_rows(rows, scales_Tk, act_RI);
      act_RI.mul_(scales_R1);
      gate_up_R2I.mul_(scales_R1);
    }
    dact_RI = at::Tensor();
    add_gradients(gradients, kDown, rows, dy_RM, act_RI);
  }
  // gate|up is its gradient now.
  add_gradients(gradients, kGateUp, rows, gate_up_R2I, gathered_RM);
  expert_products_backward_into(rows, gathered_RM, gate_up_R2I, w[kGateUp]);
  gate_up_R2I = kept.first = at::Tensor();
  InputGradients inputs{sum_of_rows(rows, gathered_RM, {}).to(x_TM.scalar_type()), {}};
  inputs.dlogits_TE = route_backward(weighted_dweights_Tk, routing, kept.last, rule_);
  gradients.add_linear(kRouter, std::nullopt, inputs.dlogits_TE, router_input_TM);
  return inputs;
}

// Makes logits and gate|up, or finds them in `kept` where that is filled.
RoutedExperts::Routed RoutedExperts::route_rows(const UnitWeights& w, at::Tensor router_input_TM,
                                                at::Tensor x_TM, const at::Tensor& kept_TW,
                                                bool filled) const {
  const int64_t T = x_TM.size(0), gate_up = 2 * rule_.experts_per_token * config_.intermediate_size;
  Routed routed;
  routed.kept = kept_TW.defined() ? kept_parts(kept_TW, gate_up)
                                  : KeptParts{at::empty({T, gate_up}, x_TM.options()),
                                              at::empty({T, config_.num_experts}, x_TM.options())};
  routed.gate_up_R2I = routed.kept.first.view({-1, 2 * config_.intermediate_size});
  if (!filled) linear_into(routed.kept.last, router_input_TM, w[kRouter], {});
  router_input_TM = at::Tensor();
  routed.routing = route(routed.kept.last, rule_);
  const at::Tensor& experts_Tk = routed.routing.experts_Tk;
  if (w[kExpertScale].defined())
    routed.scales_Tk = w[kExpertScale]
                           .to(routed.routing.weights_Tk.scalar_type())
                           .index_select(0, experts_Tk.reshape({-1}))
                           .view(experts_Tk.sizes());
  routed.rows = rows_by_expert(experts_Tk, config_.num_experts);
  routed.gathered_RM = gather_rows(routed.rows, x_TM);
  x_TM = at::Tensor();
  if (!filled) expert_products_into(routed.rows, routed.gate_up_R2I, routed.gathered_RM, w[kGateUp]);
  return routed;
}

}  // namespace trireme::decoder
