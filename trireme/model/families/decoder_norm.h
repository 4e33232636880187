// The RMS norm of decoders.
#pragma once

#include "trireme/kernels/token_ops.h"
#include "trireme/model/model_config.h"

namespace trireme::decoder {

// What an RMS norm multiplies by. Where 1 is added it is fp32: 16 bits would round it, and transformers does
// not.
inline at::Tensor norm_factor(const ModelConfig& config, const at::Tensor& weight) {
  if (!config.norms_add_one || !weight.defined()) return weight;
  return weight.to(compute_dtype(weight)).add(1);
}

inline at::Tensor norm(const ModelConfig& config, const at::Tensor& x_TM, const at::Tensor& weight,
                       at::ScalarType dtype) {
  return rms_norm(x_TM, norm_factor(config, weight), config.norm_eps, dtype);
}
inline void norm_backward(const ModelConfig& config, const at::Tensor& dy_TM, const at::Tensor& x_TM,
                          const at::Tensor& weight, at::Tensor& dx_TM, at::Tensor& dweight) {
  rms_norm_backward(dy_TM, x_TM, norm_factor(config, weight), config.norm_eps, dx_TM, dweight);
}

}  // namespace trireme::decoder
