// Whether a request can be planned for so many devices, and what to give instead.
#pragma once

#include "trireme/plan/plan_request.h"

namespace trireme {

// Throws ConfigError that says what to give instead: devices that are no whole machines, or whose links have
// no rate, degrees that do not divide them, more devices than heads x ring x samples allow, fewer tokens than
// ranks, or more in a step than a rank's host memory holds. `tokens` 0: they are not known.
void check_request(const PlanRequest& request, int devices, int64_t tokens);

}  // namespace trireme
