// A plan as files for `trireme train`, and the lines that start the run.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/cli/plan.h"

namespace trireme {

// Writes run.yaml and ds_config.json into `folder`; empty: nothing, and the options stand in the lines.
// Returns the lines, each with its end. Throws ConfigError, DataError: the folder cannot be written.
std::string write_plan(const PlanFlags& flags, const OptionParser& parser, const PlannedModel& model,
                       const PlanRequest& request, const Planned& planned,
                       const std::filesystem::path& folder);

}  // namespace trireme
