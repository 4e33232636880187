// A plan for programs: keys that carry their units and stay as they are (docs/plan.md lists them).
#pragma once

#include "trireme/base/json.h"
#include "trireme/plan/plan.h"

namespace trireme {

// {"parameters": 123, ...}, every category.
Json bytes_json(const MemoryBytes& bytes);

Json plan_json(const PlanRequest& request, const Plan& plan);

}  // namespace trireme
