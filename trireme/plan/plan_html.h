// A plan as one page that needs nothing else: no script, no network, light and dark, on paper too. Every
// number is one of plan_json's, and stands whole in the value of its <data>.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/plan.h"

namespace trireme {

// `launch`: the lines that start the run.
std::string plan_html(const PlanRequest& request, const Plan& plan, const std::string& launch);
// `launch`: of all stages.
std::string stages_html(const PlanRequest& request, const std::vector<Plan>& plans,
                        const std::string& launch);

}  // namespace trireme
