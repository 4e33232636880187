// A plan for a person at a terminal.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/plan.h"

namespace trireme {

std::string plan_text(const PlanRequest& request, const Plan& plan);
// A line for each length, and what its token budget takes; `request` is that of a stage.
std::string stages_text(const PlanRequest& request, const std::vector<Plan>& plans);
// "12,345"; below 100 with a digit.
std::string rate_text(double per_second);
// The hardware profile's figures of the run's dtype that nobody measured or published; may be empty.
std::string estimated_figures(const PlanRequest& request);
// Of how many samples a step the rates of a frontier are, which has a length or more.
std::string frontier_samples_text(const std::vector<Planned>& frontier);
// "dp 4 x ulysses 8, ZeRO 3, recompute keep_attention on 20 of 32 layers, optimizer to the host"
std::string configuration_text(const Planned& planned);

}  // namespace trireme
