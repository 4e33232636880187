// Experts beside an MLP, each with norms of its own (Gemma 4 26B-A4B):
//
//   normed_TM -> gate|up_T2I -> GeGLU: act_TI -> down = b_TM -> norm: first_TM
//   x1_TM -> norm -> x_TM, norm -> router input_TM -> routed_experts.h: e_TM -> norm, + first_TM -> norm, + x1_TM
//
// The router's norm has the weight scale M^-1/2. Kept: gate|up, b, what the experts keep, and e: backward reads
// what goes into a norm. Where nothing is kept, a tile is computed once more and kept until its backward.
#include <optional>
#include <utility>

#include "trireme/kernels/product.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/model/adapted_linear.h"
#include "trireme/model/families/decoder_mlp.h"
#include "trireme/model/families/decoder_norm.h"
#include "trireme/model/families/decoder_units.h"
#include "trireme/model/families/routed_experts.h"
#include "trireme/model/families/shared_expert.h"
#include "trireme/model/kept_parts.h"

namespace trireme::decoder {
namespace {

class ExpertsBesideMlp final : public DecoderMlp {
 public:
  explicit ExpertsBesideMlp(const ModelConfig& config) : config_(config), routed_(config) {}

  int64_t kept_width() const override {
    return routed_.kept_width() + 2 * config_.shared_intermediate_size + 2 * config_.hidden_size;
  }

  void forward(const UnitWeights& w, at::Tensor normed_TM, const at::Tensor& kept_TW,
               at::Tensor& x1_TM) const override {
    const auto dtype = normed_TM.scalar_type();
    Kept kept = parts(kept_TW);
    at::Tensor sum_TM;
    {
      at::Tensor act_TI = shared_expert_act(config_, w, normed_TM, kept.gate_up);
      normed_TM = at::Tensor();
      const at::Tensor b_TM = adapted_linear(act_TI, w, kSharedDown, std::nullopt);
      act_TI = at::Tensor();
      if (kept.b.defined()) kept.b.copy_(b_TM);
      sum_TM = norm(config_, b_TM, w[kSharedOutNorm], dtype);
    }
    at::Tensor e_TM = routed_.forward(w, router_input(w, x1_TM, dtype),
                                      norm(config_, x1_TM, w[kExpertNorm], dtype), kept.routed);
    e_TM = e_TM.to(dtype);
    if (kept.e.defined()) kept.e.copy_(e_TM);
    sum_TM.add_(norm(config_, e_TM, w[kExpertOutNorm], dtype));
    e_TM = at::Tensor();
    x1_TM.add_(norm(config_, sum_TM, w[kMlpOutNorm], dtype));
  }

  MlpGradients backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& x1_TM,
                        at::Tensor normed_TM, const at::Tensor& dy_TM,
                        const at::Tensor& kept_TW) const override {
    const auto dtype = normed_TM.scalar_type();
    at::Tensor filled_TW = kept_TW;
    if (!filled_TW.defined()) {
      filled_TW = at::empty({normed_TM.size(0), kept_width()}, normed_TM.options());
      at::Tensor y_TM = x1_TM.clone();
      forward(w, normed_TM, filled_TW, y_TM);
    }
    Kept kept = parts(filled_TW);
    filled_TW = at::Tensor();
    at::Tensor dsum_TM = at::zeros_like(dy_TM);
    {
      at::Tensor sum_TM = norm(config_, kept.b, w[kSharedOutNorm], dtype);
      sum_TM.add_(norm(config_, kept.e, w[kExpertOutNorm], dtype));
      norm_backward(config_, dy_TM, sum_TM, w[kMlpOutNorm], dsum_TM, gradients.to_add(kMlpOutNorm));
    }
    at::Tensor dx1_TM = experts_backward(w, gradients, x1_TM, dsum_TM, kept);
    at::Tensor db_TM = at::zeros_like(dsum_TM);
    norm_backward(config_, dsum_TM, kept.b, w[kSharedOutNorm], db_TM, gradients.to_add(kSharedOutNorm));
    dsum_TM = at::Tensor();
    MlpGradients d{{}, std::move(dx1_TM)};
    shared_expert_backward(config_, w, gradients, normed_TM, db_TM, std::move(kept.gate_up), d.dnormed_TM);
    return d;
  }

 private:
  struct Kept {
    at::Tensor gate_up;  // [T, 2 Is]
    at::Tensor b;        // [T, M]
    at::Tensor routed;   // [T, RoutedExperts::kept_width]
    at::Tensor e;        // [T, M]
  };
  // Undefined where nothing is kept.
  Kept parts(const at::Tensor& kept_TW) const {
    if (!kept_TW.defined()) return {};
    const KeptParts mlp = kept_parts(kept_TW, 2 * config_.shared_intermediate_size);
    const KeptParts b = kept_parts(mlp.last, config_.hidden_size);
    const KeptParts routed = kept_parts(b.last, routed_.kept_width());
    return {mlp.first, b.first, routed.first, routed.last};
  }

  // What the router's norm multiplies by.
  at::Tensor router_weight(const UnitWeights& w) const { return w[kRouterScale] * config_.width_scale(); }
  at::Tensor router_input(const UnitWeights& w, const at::Tensor& x1_TM, at::ScalarType dtype) const {
    return rms_norm(x1_TM, router_weight(w), config_.norm_eps, dtype);
  }

  // dsum -> d(x1) of the experts' way.
  at::Tensor experts_backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& x1_TM,
                              const at::Tensor& dsum_TM, const Kept& kept) const {
    const auto dtype = dsum_TM.scalar_type();
    RoutedExperts::InputGradients inputs;
    {
      at::Tensor de_TM = at::zeros_like(dsum_TM);
      norm_backward(config_, dsum_TM, kept.e, w[kExpertOutNorm], de_TM, gradients.to_add(kExpertOutNorm));
      inputs = routed_.backward(w, gradients, router_input(w, x1_TM, dtype),
                                norm(config_, x1_TM, w[kExpertNorm], dtype), de_TM, kept.routed);
    }
    at::Tensor dx1_TM = at::zeros_like(x1_TM);
    norm_backward(config_, inputs.dx_TM, x1_TM, w[kExpertNorm], dx1_TM, gradients.to_add(kExpertNorm));
    inputs.dx_TM = at::Tensor();
    at::Tensor& dscale = gradients.to_add(kRouterScale);
    at::Tensor dweight = at::zeros_like(dscale);
    rms_norm_backward(product(inputs.dlogits_TE, w[kRouter]), x1_TM, router_weight(w), config_.norm_eps,
                      dx1_TM, dweight);
    dscale.add_(dweight, config_.width_scale());
    return dx1_TM;
  }

  const ModelConfig& config_;
  const RoutedExperts routed_;
};

}  // namespace

std::unique_ptr<DecoderMlp> make_experts_beside_mlp(const ModelConfig& config) {
  return std::make_unique<ExpertsBesideMlp>(config);
}

}  // namespace trireme::decoder
