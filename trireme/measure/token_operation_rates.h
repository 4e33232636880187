// Rates of the operations beside products and attention: norms, rotation, activation, cross entropy,
// embedding (kernels/token_ops.h, model/embedding.h), copies between a layer's buffers, and the optimizer's
// step with the gradient's norm and clipping (shard/), by the values of a call.
#pragma once

#include "trireme/measure/call_timer.h"
#include "trireme/plan/hardware_profile.h"

namespace trireme {

// Adds the other kinds of WorkKind. Values and weights have `dtype`, masters and gradients fp32. Collective.
void measure_token_operation_rates(const CallTimer& timer, at::ScalarType dtype, Rates& rates);

}  // namespace trireme
