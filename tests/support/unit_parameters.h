// A unit's parameters by their names.
#pragma once

#include <map>
#include <stdexcept>
#include <string>

#include "trireme/model/unit_weights.h"

namespace trireme::testing {

// The one whose name is `name_end`, or ends in it behind a dot.
inline const ParameterSpec& parameter_of(const UnitSpec& unit, const std::string& name_end) {
  const ParameterSpec* found = nullptr;
  for (const ParameterSpec& spec : unit.parameters) {
    if (spec.name != name_end && !spec.name.ends_with("." + name_end)) continue;
    if (found != nullptr) throw std::logic_error(unit.name + " has several of " + name_end);
    found = &spec;
  }
  if (found == nullptr) throw std::logic_error(unit.name + " has no " + name_end);
  return *found;
}

// Views of a flat buffer, by the parameters' names without the `prefix` that all have.
inline std::map<std::string, at::Tensor> parameters_of(const UnitSpec& unit, const at::Tensor& flat,
                                                       const std::string& prefix) {
  std::map<std::string, at::Tensor> views;
  for (const ParameterSpec& spec : unit.parameters)
    views[spec.name.substr(prefix.size())] = parameter_view(flat, spec);
  return views;
}

}  // namespace trireme::testing
