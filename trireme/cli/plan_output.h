// A plan as files for `trireme train`, and the lines that start the run.
#pragma once

#include <string>
#include <vector>

#include "trireme/cli/plan.h"

namespace trireme {

// The model is trained on masked tokens, and no tokenizer of its folder says what stands for them: the lines
// that start a run leave a place for its id.
bool lacks_mask_token(const PlanFlags& flags, const PlannedModel& model);
// Its config.json asks for dropout, which train refuses unless told --dropout 0: the lines say that.
bool asks_for_dropout(const PlanFlags& flags, const PlannedModel& model);

// Writes run.yaml and ds_config.json into --output; without it nothing, and the options stand in the lines.
// Both return lines, each with its end. They throw ConfigError, DataError: the folder cannot be written.
std::string write_plan(const PlanFlags& flags, const OptionParser& parser, const PlannedModel& model,
                       const PlanRequest& request, const Planned& planned);
// run.yaml with stages.yaml, for one run of all stages; `rope_scalings` as stages_yaml has them.
std::string write_stages(const PlanFlags& flags, const OptionParser& parser, const PlannedModel& model,
                         const PlanRequest& request, const std::vector<Planned>& stages,
                         const std::vector<std::string>& rope_scalings);

}  // namespace trireme
