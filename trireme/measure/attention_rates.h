// Rates of the local attention kernel that `auto` takes, forward and backward, by tokens of a causal document
// and head width.
#pragma once

#include "trireme/measure/call_timer.h"
#include "trireme/plan/hardware_profile.h"

namespace trireme {

// Adds WorkKind attention_forward and attention_backward. Collective.
void measure_attention_rates(const CallTimer& timer, at::ScalarType dtype, Rates& rates);

}  // namespace trireme
