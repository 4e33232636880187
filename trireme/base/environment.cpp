#include "trireme/base/environment.h"

#include <cstdlib>

#include "trireme/base/sizes.h"

namespace trireme {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int64_t> environment_integer(const std::string& name) {
  const auto value = environment(name);
  if (!value) return std::nullopt;
  return parse_count(*value, "environment variable " + name);
}

}  // namespace trireme
