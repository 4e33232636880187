// The experts of a mixture (arXiv 1701.06538, 2401.04088) that a router gives a token, k of E gated MLPs, and the
// sum of what they make of it by its weights:
//
//   router input_TM -> router: logits_TE -> experts_Tk, weights_Tk (times a number of each expert: Gemma 4)
//   x_TM -> rows by expert: x_RM -> gate|up_R2I -> SwiGLU or GeGLU: act_RI -> down_RM -> weighted sum: y_TM
//
// R = T k rows. Kept: gate|up of all rows, and logits: were they computed again, rounding could send a token to
// other experts than those whose gate|up was kept. Backward runs gate|up and the router once more (or takes what
// was kept), never down: with dact of rows that were weighted already, w dL/dw of a row is the product of act and
// dact.
//
// No loss balances the load of the experts (model/expert_config.cpp refuses models that ask for it).
#pragma once

#include <ATen/ATen.h>

#include "trireme/kernels/expert_routing.h"
#include "trireme/kernels/expert_rows.h"
#include "trireme/model/kept_parts.h"
#include "trireme/model/model_config.h"
#include "trireme/model/unit_gradients.h"
#include "trireme/model/unit_weights.h"

namespace trireme::decoder {

// Holds no weights, and refers to `config`. Tensors have the tile dtype; contiguous where they are kept.
class RoutedExperts {
 public:
  explicit RoutedExperts(const ModelConfig& config);

  int64_t kept_width() const;

  // Both inputs [T, M], given to be freed -> y [T, M] in fp32 (fp64 of fp64). `kept` [T, kept_width] is filled where
  // defined.
  at::Tensor forward(const UnitWeights& w, at::Tensor router_input_TM, at::Tensor x_TM,
                     const at::Tensor& kept_TW) const;

  struct InputGradients {
    at::Tensor dx_TM;
    at::Tensor dlogits_TE;  // the router's matrix gives its input's
  };
  // dy [T, M], added to the gradients. May write over `kept`; undefined: made again.
  InputGradients backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& router_input_TM,
                          const at::Tensor& x_TM, const at::Tensor& dy_TM, const at::Tensor& kept_TW) const;

 private:
  struct Routed {
    KeptParts kept;  // gate|up [T, 2 k I] and logits [T, E]
    Routing routing;
    at::Tensor scales_Tk;  // of the chosen experts; undefined: 1
    ExpertRows rows;
    at::Tensor gathered_RM;
    at::Tensor gate_up_R2I;  // of `kept`
  };
  Routed route_rows(const UnitWeights& w, at::Tensor router_input_TM, at::Tensor x_TM,
                    const at::Tensor& kept_TW, bool filled) const;

  const ModelConfig& config_;
  const RoutingRule rule_;
};

}  // namespace trireme::decoder
