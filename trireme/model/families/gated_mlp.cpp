// normed_TM -> gate|up_T2I -> SwiGLU or GeGLU: act_TI -> down = b_TM -> (norm) + x1
//
// Kept: gate|up, and b where a norm follows (Gemma 3, arXiv 2503.19786): its backward reads b, and no other
// product gives it. Backward runs gate|up once more (or takes what was kept), and down where a norm follows.
#include "trireme/model/adapted_linear.h"
#include "trireme/model/families/decoder_mlp.h"
#include "trireme/model/families/decoder_norm.h"
#include "trireme/model/families/decoder_units.h"
#include "trireme/model/families/gated_act.h"
#include "trireme/model/kept_parts.h"

namespace trireme::decoder {
namespace {

class GatedMlp final : public DecoderMlp {
 public:
  explicit GatedMlp(const ModelConfig& config) : config_(config) {}

  int64_t kept_width() const override {
    return 2 * config_.intermediate_size + (config_.post_norms ? config_.hidden_size : 0);
  }

  void forward(const UnitWeights& w, at::Tensor normed_TM, const at::Tensor& kept_TW,
               at::Tensor& x1_TM) const override {
    const bool keeps = kept_TW.defined();
    const KeptParts kept = keeps ? kept_parts(kept_TW, w[kGateUp].size(0)) : KeptParts{};
    at::Tensor act = gated_act(config_, w, kGateUp, kGateUpBias, normed_TM, kept.first);
    normed_TM = at::Tensor();
    if (!w[kMlpOutNorm].defined()) {
      add_adapted_linear(x1_TM, act, w, kDown, kDownBias);
      return;
    }
    const at::Tensor b = adapted_linear(act, w, kDown, kDownBias);
    act = at::Tensor();
    if (keeps) kept.last.copy_(b);
    x1_TM.add_(norm(config_, b, w[kMlpOutNorm], b.scalar_type()));
  }

  MlpGradients backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& /*x1_TM*/,
                        at::Tensor normed_TM, const at::Tensor& dy_TM,
                        const at::Tensor& kept_TW) const override {
    KeptParts mlp = kept_TW.defined() ? kept_parts(kept_TW, w[kGateUp].size(0))
                                      : KeptParts{adapted_linear(normed_TM, w, kGateUp, kGateUpBias), {}};
    at::Tensor db = dy_TM;
    if (w[kMlpOutNorm].defined()) {
      if (!mlp.last.defined()) mlp.last = adapted_linear(glu(config_.gate, mlp.first), w, kDown, kDownBias);
      db = at::zeros_like(dy_TM);
      norm_backward(config_, dy_TM, mlp.last, w[kMlpOutNorm], db, gradients.to_add(kMlpOutNorm));
      mlp.last = at::Tensor();
    }
    const at::Tensor dact = adapted_linear_backward(db, w, kDown);
    const at::Tensor act = glu_backward(config_.gate, dact, mlp.first);
    const at::Tensor& dgate_up = mlp.first;
    add_adapted_linear_gradients(gradients, w, kDown, kDownBias, db, act);
    add_adapted_linear_gradients(gradients, w, kGateUp, kGateUpBias, dgate_up, normed_TM);
    return {adapted_linear_backward(dgate_up, w, kGateUp), {}};
  }

 private:
  const ModelConfig& config_;
};

}  // namespace

std::unique_ptr<DecoderMlp> make_gated_mlp(const ModelConfig& config) {
  return std::make_unique<GatedMlp>(config);
}

}  // namespace trireme::decoder
