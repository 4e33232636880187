// A mixture of experts (arXiv 1701.06538, 2401.04088): a router gives each token k of E gated MLPs, and sums
// what they make of it by its weights. In some models every token has one more (shared_expert.h).
//
//   normed_TM -> router: logits_TE -> experts_Tk, weights_Tk -> rows by expert: normed_RM    R = T k
//             -> gate|up_R2I -> SwiGLU: act_RI -> down_RM -> weighted sum of each token's rows, in fp32, + x1
//
// Kept: gate|up of all rows, logits, and what the shared expert keeps. Were logits computed again, rounding
// could send a token to other experts than those whose gate|up was kept. Backward runs gate|up and the router
// once more (or takes what was kept), never down: with dact of rows that were weighted already, w dL/dw of a
// row is the product of act and dact.
//
// No loss balances the load of the experts (model/decoder_config.cpp refuses models that ask for it).
#include <utility>

#include "trireme/kernels/expert_routing.h"
#include "trireme/kernels/expert_rows.h"
#include "trireme/kernels/linear.h"
#include "trireme/kernels/product.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/model/families/decoder_mlp.h"
#include "trireme/model/families/decoder_units.h"
#include "trireme/model/families/shared_expert.h"
#include "trireme/model/kept_parts.h"

namespace trireme::decoder {
namespace {

class ExpertMlp final : public DecoderMlp {
 public:
  explicit ExpertMlp(const ModelConfig& config)
      : config_(config), rule_{config.experts_per_token, config.expert_weights_sum_to_one} {}

  void forward(const UnitWeights& w, at::Tensor normed_TM, const at::Tensor& kept_TW,
               at::Tensor& x1_TM) const override {
    if (shares()) add_shared_expert(config_, w, normed_TM, kept_tensors(kept_TW).shared, x1_TM);
    Routed routed = route_rows(w, std::move(normed_TM), kept_TW, /*filled=*/false);
    at::Tensor act_RI = glu(config_.gate, routed.gate_up_R2I);
    routed.kept = {};
    routed.gate_up_R2I = at::Tensor();
    at::Tensor& down_RM = routed.gathered_RM;
    expert_products_into(routed.rows, down_RM, act_RI, w[kDown]);
    act_RI = at::Tensor();
    x1_TM.add_(sum_of_rows(routed.rows, down_RM, routed.routing.weights_Tk));
  }

  at::Tensor backward(const UnitWeights& w, UnitGradients& gradients, at::Tensor normed_TM,
                      const at::Tensor& dy_TM, const at::Tensor& kept_TW) const override {
    at::Tensor dnormed_TM = routed_backward(w, gradients, normed_TM, dy_TM, kept_TW);
    if (shares())
      shared_expert_backward(config_, w, gradients, normed_TM, dy_TM, kept_tensors(kept_TW).shared,
                             dnormed_TM);
    return dnormed_TM;
  }

 private:
  // Of the experts that a token goes to: -> d(normed) [T, M], and added to the gradients.
  at::Tensor routed_backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& normed_TM,
                             const at::Tensor& dy_TM, const at::Tensor& kept_TW) const {
    auto [kept, routing, rows, gathered_RM, gate_up_R2I] =
        route_rows(w, normed_TM, kept_TW, /*filled=*/kept_TW.defined());
    at::Tensor weighted_dweights_Tk;
    {
      at::Tensor dy_RM = gather_rows(rows, dy_TM);
      dy_RM.mul_(gather_choices(rows, routing.weights_Tk.to(dy_RM.scalar_type())));
      at::Tensor dact_RI = at::empty({rows.rows(), config_.intermediate_size}, dy_RM.options());
      expert_products_backward_into(rows, dact_RI, dy_RM, w[kDown]);
      const at::Tensor act_RI = glu_backward(config_.gate, dact_RI, gate_up_R2I);
      add_gradients(gradients, kDown, rows, dy_RM, act_RI);
      dy_RM = at::Tensor();
      weighted_dweights_Tk = dact_RI.mul_(act_RI)
                                 .sum(1, /*keepdim=*/false, compute_dtype(dact_RI))
                                 .index_select(0, rows.row_Tk.view({-1}))
                                 .view(rows.row_Tk.sizes());
    }
    // gate|up is its gradient now.
    add_gradients(gradients, kGateUp, rows, gate_up_R2I, gathered_RM);
    expert_products_backward_into(rows, gathered_RM, gate_up_R2I, w[kGateUp]);
    gate_up_R2I = kept.gate_up = at::Tensor();
    at::Tensor dnormed_TM = sum_of_rows(rows, gathered_RM, {}).to(normed_TM.scalar_type());
    const at::Tensor dlogits_TE = route_backward(weighted_dweights_Tk, routing, kept.logits, rule_);
    gradients.add_linear(kRouter, std::nullopt, dlogits_TE, normed_TM);
    add_product(dnormed_TM, dlogits_TE, w[kRouter]);
    return dnormed_TM;
  }

  static void add_gradients(UnitGradients& gradients, size_t slot, const ExpertRows& rows,
                            const at::Tensor& dy, const at::Tensor& x) {
    if (gradients.frozen()) return;
    const auto [sums, state] = gradients.take_sum(slot);
    add_expert_gradients(rows, sums, dy, x, state);
  }
  // Undefined where nothing is kept.
  struct Kept {
    at::Tensor gate_up;  // [T, 2 k I]
    at::Tensor logits;   // [T, E]
    at::Tensor shared;   // [T, 2 Is]
  };
  struct Routed {
    Kept kept;
    Routing routing;
    ExpertRows rows;
    at::Tensor gathered_RM;
    at::Tensor gate_up_R2I;  // of `kept`
  };
  bool shares() const { return config_.shared_intermediate_size > 0; }
  int64_t gate_up_width() const { return 2 * rule_.experts_per_token * config_.intermediate_size; }
  Kept kept_tensors(const at::Tensor& kept_TW) const {
    if (!kept_TW.defined()) return {};
    const KeptParts parts = kept_parts(kept_TW, gate_up_width());
    const KeptParts rest = kept_parts(parts.last, config_.num_experts);
    return {parts.first, rest.first, shares() ? rest.last : at::Tensor()};
  }
  // Makes logits and gate|up, or finds them in `kept` where that is filled.
  Routed route_rows(const UnitWeights& w, at::Tensor normed_TM, const at::Tensor& kept_TW,
                    bool filled) const {
    const int64_t T = normed_TM.size(0);
    Routed routed;
    routed.kept = kept_TW.defined() ? kept_tensors(kept_TW)
                                    : Kept{at::empty({T, gate_up_width()}, normed_TM.options()),
                                           at::empty({T, config_.num_experts}, normed_TM.options()),
                                           {}};
    routed.gate_up_R2I = routed.kept.gate_up.view({-1, 2 * config_.intermediate_size});
    if (!filled) linear_into(routed.kept.logits, normed_TM, w[kRouter], {});
    routed.routing = route(routed.kept.logits, rule_);
    routed.rows = rows_by_expert(routed.routing.experts_Tk, config_.num_experts);
    routed.gathered_RM = gather_rows(routed.rows, normed_TM);
    normed_TM = at::Tensor();
    if (!filled) expert_products_into(routed.rows, routed.gate_up_R2I, routed.gathered_RM, w[kGateUp]);
    return routed;
  }

  const ModelConfig& config_;
  const RoutingRule rule_;
};

}  // namespace

std::unique_ptr<DecoderMlp> make_expert_mlp(const ModelConfig& config) {
  return std::make_unique<ExpertMlp>(config);
}

int64_t expert_mlp_kept_width(const ModelConfig& config) {
  return 2 * config.experts_per_token * config.intermediate_size + config.num_experts +
         2 * config.shared_intermediate_size;
}

}  // namespace trireme::decoder
