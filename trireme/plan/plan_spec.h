// The page that a run is decided by, in Markdown: what is asked, what it takes, what to check before money is
// spent, and what can go wrong. A plan fills it in; what only a person knows is left open.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/plan/plan.h"

namespace trireme {

struct SpecFacts {
  std::string launch;             // the lines that start the run
  int64_t trained_positions = 0;  // that the model's config.json says, before --rope_scaling
};

std::string plan_spec(const PlanRequest& request, const Plan& plan, const SpecFacts& facts);

}  // namespace trireme
