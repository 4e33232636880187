// The flags of `trireme launch`, and the command behind them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/launch/launch.h"

namespace trireme {

// `--nproc_per_node 2 [--flag value | --flag=value]... [--] command...`. Nothing: help was asked for and
// printed, as it is without any argument. ConfigError for what it does not know.
std::optional<LaunchOptions> parse_launch_arguments(const std::vector<std::string>& arguments);

}  // namespace trireme
