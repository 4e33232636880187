// A mixture of experts in place of an MLP: what a router gives each token of them (routed_experts.h), and in some
// models one more that every token has (shared_expert.h).
//
//   normed_TM -> experts' y_TM, shared expert's y_TM, both added to x1_TM
//
// Kept: what each of the two keeps.
#include <optional>
#include <utility>

#include "trireme/kernels/product.h"
#include "trireme/model/adapted_linear.h"
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

  int64_t kept_width() const override { return routed_.kept_width() + 2 * config_.shared_intermediate_size; }

  void forward(const UnitWeights& w, at::Tensor normed_TM, const at::Tensor& kept_TW,
               at::Tensor& x1_TM) const override {
    const auto [routed_TW, shared_T2I] = parts(kept_TW);
    if (shares())
      add_adapted_linear(x1_TM, shared_expert_act(config_, w, normed_TM, shared_T2I), w, kSharedDown,
                         std::nullopt);
    at::Tensor router_input_TM = normed_TM;
    x1_TM.add_(routed_.forward(w, std::move(router_input_TM), std::move(normed_TM), routed_TW));
  }

  MlpGradients backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& /*x1_TM*/,
                        at::Tensor normed_TM, const at::Tensor& dy_TM,
                        const at::Tensor& kept_TW) const override {
    const auto [routed_TW, shared_T2I] = parts(kept_TW);
    at::Tensor dnormed_TM;
    {
      auto [dx_TM, dlogits_TE] = routed_.backward(w, gradients, normed_TM, normed_TM, dy_TM, routed_TW);
      dnormed_TM = std::move(dx_TM);
      add_product(dnormed_TM, dlogits_TE, w[kRouter]);
    }
    if (shares()) shared_expert_backward(config_, w, gradients, normed_TM, dy_TM, shared_T2I, dnormed_TM);
    return {std::move(dnormed_TM), {}};
  }

 private:
  bool shares() const { return config_.shared_intermediate_size > 0; }
  // What the experts keep, and the shared one [T, 2 Is]; undefined where nothing is kept.
  KeptParts parts(const at::Tensor& kept_TW) const {
    return kept_TW.defined() ? kept_parts(kept_TW, routed_.kept_width()) : KeptParts{};
  }

  const ModelConfig& config_;
  const RoutedExperts routed_;
};

}  // namespace

std::unique_ptr<DecoderMlp> make_expert_mlp(const ModelConfig& config) {
  return std::make_unique<ExpertMlp>(config);
}

}  // namespace trireme::decoder
