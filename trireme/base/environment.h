// Reads environment variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

std::optional<std::string> environment(const std::string& name);

// Throws ConfigError when the variable is set to something that is not a whole number.
std::optional<int64_t> environment_integer(const std::string& name);

}  // namespace trireme
