// Rates of matrix products as a layer and a head make them (kernels/linear.h), by the least side of the
// weight and the rows of a tile: forward and d(input), and weight gradients with fp32 sums.
//
// A layer's four weights and their gradients take turns, as in a tile's backward, so that they lie in the
// caches that they lie in there. A head's matrix is as wide as the logits tile that the engine would choose
// for its rows, and at most 131,072.
#pragma once

#include "trireme/measure/call_timer.h"
#include "trireme/plan/hardware_profile.h"

namespace trireme {

// Adds WorkKind matmul, weight_gradient, head_matmul and head_weight_gradient. Sizes that would take too long
// at this dtype's highest rate so far are left out. Collective.
void measure_product_rates(const CallTimer& timer, at::ScalarType dtype, Rates& rates);

}  // namespace trireme
