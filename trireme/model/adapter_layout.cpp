#include "trireme/model/adapter_layout.h"

#include <algorithm>
#include <string_view>

namespace trireme {

ModelLayout layout_of_adapter_files(const ModelLayout& layout) {
  ModelLayout files{.units = layout.adapters.units};
  for (UnitSpec& unit : files.units)
    for (ParameterSpec& spec : unit.parameters)
      if (is_lora_matrix(spec))
        spec.missing_hint = "LoRA of a module in some layers and not in others that have it is not built";
  // PEFT writes a tied embedding under both names.
  for (TiedName tied : layout.tied_names) {
    tied.name = kAdapterPrefix + tied.name;
    tied.parameter = kAdapterPrefix + tied.parameter;
    tied.differs_hint = "PEFT writes one matrix under both names where ensure_weight_tying is true";
    const auto is_trained = [&](const ParameterSpec& spec) { return spec.name == tied.parameter; };
    if (std::ranges::any_of(files.units.front().parameters, is_trained)) files.tied_names.push_back(tied);
  }
  return files;
}

ModelLayout layout_of_whole_parameters(const Adapters& adapters) {
  ModelLayout files{.units = adapters.units};
  for (UnitSpec& unit : files.units) {
    std::erase_if(unit.parameters, is_lora_matrix);
    for (ParameterSpec& spec : unit.parameters) spec.name.erase(0, std::string_view(kAdapterPrefix).size());
  }
  return files;
}

}  // namespace trireme
