// A module of Hugging Face's model, by the names of its parameters: "model.norm" of "model.norm.weight".
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/model/model_layout.h"

namespace trireme {

inline constexpr std::string_view kWeightOfModule = ".weight";

inline bool is_weight_of_module(const ParameterSpec& spec) {
  return spec.name.ends_with(kWeightOfModule);
}
// Of such.
inline std::string module_of(const ParameterSpec& spec) {
  return spec.name.substr(0, spec.name.size() - kWeightOfModule.size());
}
inline std::string last_name(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

// The parameters that lie in a tensor, in its order.
inline std::vector<const ParameterSpec*> parameters_of(const UnitSpec& unit, const TensorSpec& tensor) {
  const int64_t end = tensor.offset + tensor.rows * std::max<int64_t>(tensor.columns, 1);
  std::vector<const ParameterSpec*> found;
  for (const ParameterSpec& spec : unit.parameters)
    if (spec.offset >= tensor.offset && spec.offset < end) found.push_back(&spec);
  return found;
}

}  // namespace trireme
