// What a gated MLP gives its down projection: normed_TM -> gate|up_T2I -> SwiGLU or GeGLU: act_TI.
#pragma once

#include <optional>

#include <ATen/ATen.h>

#include "trireme/kernels/token_ops.h"
#include "trireme/model/adapted_linear.h"
#include "trireme/model/model_config.h"
#include "trireme/model/unit_weights.h"

namespace trireme::decoder {

// `gate_up`, `bias`: slots. gate|up is made in `kept` [T, 2 I], contiguous, where that is defined.
inline at::Tensor gated_act(const ModelConfig& config, const UnitWeights& w, size_t gate_up,
                            std::optional<size_t> bias, const at::Tensor& normed_TM,
                            const at::Tensor& kept_T2I) {
  at::Tensor gate_up_T2I =
      kept_T2I.defined() ? kept_T2I : at::empty({normed_TM.size(0), w[gate_up].size(0)}, normed_TM.options());
  adapted_linear_into(gate_up_T2I, normed_TM, w, gate_up, bias);
  return glu(config.gate, gate_up_T2I);
}

}  // namespace trireme::decoder
