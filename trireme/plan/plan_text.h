// A plan for a person at a terminal.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/plan.h"

namespace trireme {

std::string plan_text(const PlanRequest& request, const Plan& plan);
// A line for each length.
std::string stages_text(const PlanRequest& request, const std::vector<Plan>& plans);
// "dp 4 x ulysses 8, ZeRO 3, recompute keep_attention on 20 of 32 layers, optimizer to cpu"
std::string configuration_text(const Planned& planned);

}  // namespace trireme
