// A plan as what `trireme train` is told: options, a file of them, DeepSpeed's configuration, a launch line.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/plan/planned.h"

namespace trireme {

struct ChosenOption {
  const char* name;  // of train
  Json value;
  Json usual;  // what train takes where the option is not given; null: it is always told
};
std::vector<ChosenOption> chosen_options(const PlanRequest& request, const Planned& planned);

using TrainOptionValues = std::vector<std::pair<std::string, Json>>;

// What the plan chose, by the names of train's options.
TrainOptionValues train_options_of(const PlanRequest& request, const Planned& planned);

// Whether train_options_of may give this option of train.
bool is_chosen_by_plan(const std::string& option);

// YAML for --config, one option a line, after `title` as a comment.
std::string run_yaml(const std::string& title, const TrainOptionValues& options);

// A list for --context_stages: each stage with all that its plan chose, and the token budget of a stage
// (PlanRequest::of_stages), or a hundred steps where there is none. `rope_scalings`: of each stage; where one
// is empty, it is as in the stage before.
std::string stages_yaml(const std::string& title, const PlanRequest& request,
                        const std::vector<Planned>& stages, const std::vector<std::string>& rope_scalings);

// ds_config.json, for --deepspeed, with what DeepSpeed's keys can say. A ring is no key of it: `sp` is the
// degree of both.
Json deepspeed_config_of(const PlanRequest& request, const Planned& planned, double max_grad_norm);

// "trireme launch --nproc_per_node 8 -- train ARGUMENTS"; over machines with a file of hosts.
std::string launch_line(const PlanRequest& request, const Planned& planned, const std::string& arguments);

}  // namespace trireme
