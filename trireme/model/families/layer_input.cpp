#include "trireme/model/families/layer_input.h"

#include <cmath>
#include <optional>

#include "trireme/kernels/linear.h"
#include "trireme/kernels/product.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/model/adapted_linear.h"
#include "trireme/model/embedding.h"
#include "trireme/model/families/decoder_norm.h"
#include "trireme/model/families/decoder_units.h"

namespace trireme::decoder {
namespace {

class DecoderLayerInputs final : public LayerInputs {
 public:
  explicit DecoderLayerInputs(const ModelConfig& config) : config_(config) {}

  void forward(const UnitWeights& w, const at::Tensor& tokens, const at::Tensor& x_TM,
               const at::Tensor& inputs_LTP) const override {
    at::Tensor sum_RP = norm(config_, projected_rows(w, x_TM.to(w.dtype())), w[kInputsNorm], w.dtype());
    at::Tensor words = w[kInputWords].index_select(0, tokens);
    sum_RP.add_(words.mul_(words_scale(inputs_LTP)).view(sum_RP.sizes())).mul_(std::sqrt(0.5));
    inputs_LTP.copy_(sum_RP.view({tokens.size(0), config_.num_hidden_layers, -1}).transpose(0, 1));
  }

  void backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& tokens,
                const at::Tensor& x_TM, const at::Tensor& dinputs_LTP, at::Tensor dx_TM) const override {
    const at::Tensor x = x_TM.to(w.dtype());
    const at::Tensor dsum_TLP = dinputs_LTP.transpose(0, 1).contiguous().to(w.dtype()).mul(std::sqrt(0.5));
    {
      at::Tensor& dwords = gradients.to_add(kInputWords);
      const at::Tensor rows = dsum_TLP.flatten(1).to(dwords.scalar_type()).mul(words_scale(dinputs_LTP));
      add_word_gradients(dwords, config_.pad_token_id, tokens, rows);
    }
    const at::Tensor projected_RP = projected_rows(w, x);
    at::Tensor dprojected = at::zeros_like(projected_RP);
    norm_backward(config_, dsum_TLP.view(projected_RP.sizes()), projected_RP, w[kInputsNorm], dprojected,
                  gradients.to_add(kInputsNorm));
    dprojected = dprojected.mul_(config_.width_scale()).view({tokens.size(0), -1});
    gradients.add_linear(kInputsProjection, std::nullopt, dprojected, x);
    dx_TM.add_(product(dprojected, w[kInputsProjection]));
  }

 private:
  double words_scale(const at::Tensor& inputs_LTP) const {
    return scale_in(inputs_LTP.scalar_type(), std::sqrt(static_cast<double>(config_.layer_input_width)));
  }
  // [T L, P], before the norm.
  at::Tensor projected_rows(const UnitWeights& w, const at::Tensor& x_TM) const {
    return linear_forward(x_TM, w[kInputsProjection], {})
        .mul_(config_.width_scale())
        .view({-1, config_.layer_input_width});
  }

  const ModelConfig& config_;
};

// gate|input, as glu takes them.
at::Tensor gate_and_input(const UnitWeights& w, const at::Tensor& y_TM, const at::Tensor& input_TP) {
  const int64_t P = input_TP.size(1);
  at::Tensor both_T2P = at::empty({y_TM.size(0), 2 * P}, y_TM.options());
  at::Tensor gate_TP = both_T2P.narrow(1, 0, P);
  adapted_linear_into(gate_TP, y_TM, w, kInputGate, std::nullopt);
  both_T2P.narrow(1, P, P).copy_(input_TP);
  return both_T2P;
}

}  // namespace

std::unique_ptr<LayerInputs> make_layer_inputs(const ModelConfig& config) {
  return std::make_unique<DecoderLayerInputs>(config);
}

void add_layer_input(const ModelConfig& config, const UnitWeights& w, const at::Tensor& input_TP,
                     at::Tensor& y_TM) {
  const at::Tensor act_TP = glu(config.gate, gate_and_input(w, y_TM, input_TP));
  const at::Tensor p_TM = adapted_linear(act_TP, w, kInputProjection, std::nullopt);
  y_TM.add_(norm(config, p_TM, w[kInputNorm], p_TM.scalar_type()));
}

void layer_input_backward(const ModelConfig& config, const UnitWeights& w, UnitGradients& gradients,
                          const at::Tensor& y_TM, const at::Tensor& input_TP, at::Tensor& dy_TM) {
  const int64_t P = input_TP.size(1);
  at::Tensor both_T2P = gate_and_input(w, y_TM, input_TP);
  at::Tensor dp_TM = at::zeros_like(dy_TM);
  {
    const at::Tensor p_TM = adapted_linear(glu(config.gate, both_T2P), w, kInputProjection, std::nullopt);
    norm_backward(config, dy_TM, p_TM, w[kInputNorm], dp_TM, gradients.to_add(kInputNorm));
  }
  const at::Tensor act_TP =
      glu_backward(config.gate, adapted_linear_backward(dp_TM, w, kInputProjection), both_T2P);
  add_adapted_linear_gradients(gradients, w, kInputProjection, std::nullopt, dp_TM, act_TP);
  const at::Tensor dgate_TP = both_T2P.narrow(1, 0, P);
  add_adapted_linear_gradients(gradients, w, kInputGate, std::nullopt, dgate_TP, y_TM);
  dy_TM.add_(adapted_linear_backward(dgate_TP, w, kInputGate));
  input_TP.copy_(both_T2P.narrow(1, P, P));
}

}  // namespace trireme::decoder
