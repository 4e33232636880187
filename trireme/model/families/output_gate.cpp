#include "trireme/model/families/output_gate.h"

#include "trireme/kernels/token_ops.h"
#include "trireme/model/families/decoder_units.h"

namespace trireme::decoder {
namespace {

// [T, H, D] of the queries, or of their gates, in [T, 2H, ...].
enum class Half : int64_t { query, gate };
at::Tensor half_of(const AttentionHeads& heads, const at::Tensor& projected_TPD, Half half) {
  return projected_TPD.narrow(1, 0, 2 * heads.query)
      .unflatten(1, {heads.query, 2})
      .select(2, static_cast<int64_t>(half));
}

// gate | norm(o), which the kernels of gated MLPs take.
at::Tensor gate_and_normed(const ModelConfig& config, const LayerTensors& layer, const at::Tensor& o_TA,
                           const at::Tensor& gate_TA) {
  const at::Tensor& weight = layer.weights[kGatedNorm];
  const int64_t A = o_TA.size(1), width = weight.size(0);
  at::Tensor both = at::empty({o_TA.size(0), 2 * A}, weight.options());
  both.narrow(1, 0, A).copy_(gate_TA);
  both.narrow(1, A, A).copy_(
      rms_norm(o_TA.reshape({-1, width}), weight, config.norm_eps, weight.scalar_type()).view(o_TA.sizes()));
  return both;
}

}  // namespace

at::Tensor gated_output(const ModelConfig& config, const LayerTensors& layer, const at::Tensor& o_TA,
                        const at::Tensor& gate_TA) {
  const auto dtype = layer.weights.dtype();
  if (!gate_TA.defined()) return o_TA.to(dtype);
  if (layer.delta_net != nullptr) return glu(GluGate::silu, gate_and_normed(config, layer, o_TA, gate_TA));
  return at::sigmoid(gate_TA.to(dtype)).mul_(o_TA);
}

void gated_output_backward(const ModelConfig& config, const LayerTensors& layer, UnitGradients& gradients,
                           const at::Tensor& o_TA, const at::Tensor& gate_TA, const at::Tensor& dgated_TA,
                           const at::Tensor& do_TA) {
  const auto dtype = layer.weights.dtype();
  if (layer.delta_net == nullptr) {
    const at::Tensor gate = at::sigmoid(gate_TA.to(dtype));
    gate_TA.copy_(at::sigmoid_backward(dgated_TA * o_TA, gate));
    do_TA.copy_(gate.mul_(dgated_TA));
    return;
  }
  const at::Tensor& weight = layer.weights[kGatedNorm];
  at::Tensor both = gate_and_normed(config, layer, o_TA, gate_TA);
  glu_backward(GluGate::silu, dgated_TA, both);  // the gradients of both, from here on
  const int64_t A = o_TA.size(1), width = weight.size(0);
  gate_TA.copy_(both.narrow(1, 0, A));
  const at::Tensor rows = o_TA.reshape({-1, width}), dnormed = both.narrow(1, A, A).reshape({-1, width});
  at::Tensor d_o = at::zeros(rows.sizes(), rows.options().dtype(dtype));
  rms_norm_backward(dnormed, rows, weight, config.norm_eps, d_o, gradients.to_add(kGatedNorm));
  do_TA.copy_(d_o.view(do_TA.sizes()));
}

void part_gates(const AttentionHeads& heads, const at::Tensor& projected_TPD, const at::Tensor& qkv_TND,
                const at::Tensor& gate_TA) {
  qkv_TND.narrow(1, 0, heads.query).copy_(half_of(heads, projected_TPD, Half::query));
  qkv_TND.narrow(1, heads.query, 2 * heads.key_value)
      .copy_(projected_TPD.narrow(1, 2 * heads.query, 2 * heads.key_value));
  gate_TA.view({-1, heads.query, heads.width}).copy_(half_of(heads, projected_TPD, Half::gate));
}

at::Tensor without_gates(const AttentionHeads& heads, const at::Tensor& projected_TPD) {
  return at::cat(
      {half_of(heads, projected_TPD, Half::query), projected_TPD.narrow(1, 2 * heads.query, heads.key_value)},
      1);
}

at::Tensor with_gates(const AttentionHeads& heads, const at::Tensor& qkv_TND, const at::Tensor& gate_TA) {
  at::Tensor projected =
      at::empty({qkv_TND.size(0), 2 * heads.query + 2 * heads.key_value, heads.width}, qkv_TND.options());
  half_of(heads, projected, Half::query).copy_(qkv_TND.narrow(1, 0, heads.query));
  half_of(heads, projected, Half::gate).copy_(gate_TA.view({-1, heads.query, heads.width}));
  projected.narrow(1, 2 * heads.query, 2 * heads.key_value)
      .copy_(qkv_TND.narrow(1, heads.query, 2 * heads.key_value));
  return projected;
}

}  // namespace trireme::decoder
