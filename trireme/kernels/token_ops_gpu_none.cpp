// Stands in for token_ops_gpu.cpp in a build without CUDA: no kernel takes any tensor.
#include "trireme/kernels/token_ops_gpu.h"

namespace trireme::gpu {

std::optional<at::Tensor> rms_norm(const at::Tensor& /*x_TM*/, const at::Tensor& /*weight*/, double /*eps*/,
                                   at::ScalarType /*out_dtype*/) {
  return {};
}
bool rms_norm_backward(const at::Tensor& /*dy_TM*/, const at::Tensor& /*x_TM*/, const at::Tensor& /*weight*/,
                       double /*eps*/, at::Tensor& /*dx_TM*/, at::Tensor& /*dweight*/) {
  return false;
}
std::optional<at::Tensor> layer_norm(const at::Tensor& /*x_TM*/, const at::Tensor& /*weight*/,
                                     const at::Tensor& /*bias*/, double /*eps*/,
                                     at::ScalarType /*out_dtype*/) {
  return {};
}
std::optional<at::Tensor> layer_norm_backward(const at::Tensor& /*dy_TM*/, const at::Tensor& /*x_TM*/,
                                              const at::Tensor& /*weight*/, double /*eps*/,
                                              at::ScalarType /*out_dtype*/, at::Tensor& /*dweight*/,
                                              at::Tensor& /*dbias*/) {
  return {};
}
bool rotate_heads(const at::Tensor& /*from_TND*/, const RotaryHeads& /*rotary*/,
                  const at::Tensor& /*to_TND*/) {
  return false;
}
bool rotate_heads_backward(const at::Tensor& /*from_TND*/, const RotaryHeads& /*rotary*/,
                           const at::Tensor& /*before_TND*/, const at::Tensor& /*to_TND*/,
                           at::Tensor& /*dq_norm*/, at::Tensor& /*dk_norm*/) {
  return false;
}

std::optional<at::Tensor> glu(GluGate /*gate*/, const at::Tensor& /*gate_up*/) {
  return {};
}
std::optional<at::Tensor> glu_backward(GluGate /*gate*/, const at::Tensor& /*dact*/,
                                       const at::Tensor& /*gate_up*/) {
  return {};
}
bool exact_gelu_backward(const at::Tensor& /*dact*/, const at::Tensor& /*x*/) {
  return false;
}

bool cross_entropy(const at::Tensor& /*logits_TV*/, const at::Tensor& /*targets*/, const at::Tensor& /*loss*/,
                   std::optional<double> /*scale*/, double /*cap*/) {
  return false;
}

bool copy_all(const std::vector<TensorCopy>& /*copies*/) {
  return false;
}

bool delta_forwards(const at::Tensor& /*state_NDD*/, const DeltaRecurrenceKernel& /*recurrence*/,
                    DeltaOutputs /*outputs*/, float* /*rows_nNRD*/, float* /*updates_nNCD*/) {
  return false;
}
bool delta_backwards(const at::Tensor& /*d_state_NDD*/, const DeltaRecurrenceKernel& /*recurrence*/,
                     const float* /*d_updates_nNCD*/, float* /*d_both_nNCD*/) {
  return false;
}

bool score_tile_softmax(const ScoreTile& /*tile*/, const at::Tensor& /*scores_NRT*/,
                        const at::Tensor& /*p_NRT*/, const RunningSoftmax_NR1& /*running*/) {
  return false;
}
bool score_tile_gradients(const ScoreTile& /*tile*/, const at::Tensor& /*scores_NRT*/,
                          const at::Tensor& /*dp_NRT*/, const at::Tensor& /*p_NRT*/,
                          const at::Tensor& /*ds_NRT*/, const at::Tensor& /*lse_NR1*/,
                          const at::Tensor& /*delta_NR1*/) {
  return false;
}

}  // namespace trireme::gpu
