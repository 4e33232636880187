// A mixture of experts in place of an MLP: what a router gives each token of them (routed_experts.h), and in some
// models one more that every token has (shared_expert.h).
//
//   normed_TM -> experts' y_TM, shared expert's y_TM, both added to x1_TM
//
// Kept: what each of the two keeps.
#include <utility>

#include "trireme/kernels/product.h"
#include "trireme/model/families/decoder_mlp.h"
#include "trireme/model/families/decoder_units.h"
#include "trireme/model/families/routed_experts.h"
#include "trireme/model/families/shared_expert.h"
#include "trireme/model/kept_parts.h"

namespace trireme::decoder {
namespace {

class ExpertMlp final : public DecoderMlp {
 public:
  explicit ExpertMlp(const ModelConfig& config) : config_(config), routed_(config) {}

  void forward(const UnitWeights& w, at::Tensor normed_TM, const at::Tensor& kept_TW,
               at::Tensor& x1_TM) const override {
    Kept kept = parts(kept_TW);
    if (shares()) add_shared_expert(config_, w, normed_TM, kept.shared, x1_TM);
    at::Tensor router_input_TM = normed_TM;
    x1_TM.add_(routed_.forward(w, std::move(router_input_TM), std::move(normed_TM), std::move(kept.routed)));
  }

  MlpGradients backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& /*x1_TM*/,
                        at::Tensor normed_TM, const at::Tensor& dy_TM,
                        const at::Tensor& kept_TW) const override {
    Kept kept = parts(kept_TW);
    at::Tensor dnormed_TM;
    {
      auto [dx_TM, dlogits_TE] =
          routed_.backward(w, gradients, normed_TM, normed_TM, dy_TM, std::move(kept.routed));
      dnormed_TM = std::move(dx_TM);
      add_product(dnormed_TM, dlogits_TE, w[kRouter]);
    }
    if (shares())
      shared_expert_backward(config_, w, gradients, normed_TM, dy_TM, std::move(kept.shared), dnormed_TM);
    return {std::move(dnormed_TM), {}};
  }

 private:
  struct Kept {
    RoutedExperts::Kept routed;
    at::Tensor shared;  // [T, 2 Is]
  };
  bool shares() const { return config_.shared_intermediate_size > 0; }
  // Undefined where nothing is kept.
  Kept parts(const at::Tensor& kept_TW) const {
    if (!kept_TW.defined()) return {};
    const KeptParts first = kept_parts(kept_TW, routed_.kept_gate_up_width());
    const KeptParts rest = kept_parts(first.last, config_.num_experts);
    return {{first.first, rest.first}, shares() ? rest.last : at::Tensor()};
  }

  const ModelConfig& config_;
  const RoutedExperts routed_;
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
