// `trireme launch --nproc_per_node 2 -- train ...`
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/launch/launch.h"

namespace trireme {

// `arguments` follow the word launch. Returns the exit code of the run. Throws ConfigError.
int run_launch(const std::vector<std::string>& arguments);
// `--nproc_per_node 2 [--flag value | --flag=value]... [--] command...`. Nothing: help was asked for and
// printed, as it is without any argument. ConfigError for what it does not know.
std::optional<LaunchOptions> parse_launch_arguments(const std::vector<std::string>& arguments);

}  // namespace trireme
