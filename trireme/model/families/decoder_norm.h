// The RMS norm of decoders.
#pragma once

#include "trireme/kernels/token_ops.h"
#include "trireme/model/model_config.h"

namespace trireme::decoder {

inline at::Tensor norm(const ModelConfig& config, const at::Tensor& x_TM, const at::Tensor& weight,
                       at::ScalarType dtype) {
  return rms_norm(x_TM, weight, config.norm_eps, dtype, config.norms_add_one);
}
inline void norm_backward(const ModelConfig& config, const at::Tensor& dy_TM, const at::Tensor& x_TM,
                          const at::Tensor& weight, at::Tensor& dx_TM, at::Tensor& dweight) {
  rms_norm_backward(dy_TM, x_TM, weight, config.norm_eps, dx_TM, dweight, config.norms_add_one);
}

}  // namespace trireme::decoder
