#include "trireme/model/whole_modules.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/model/language_model.h"
#include "trireme/model/module_names.h"

namespace trireme {

std::vector<WholeTensor> WholeModules::add(int unit, UnitBuilder& build, size_t& tensor) {
  const UnitSpec& spec = layout_.units[static_cast<size_t>(unit)];
  std::vector<WholeTensor> whole;
  for (size_t slot = 0; slot < spec.tensors.size(); ++slot) {
    const std::vector<const ParameterSpec*> parameters = parameters_of(spec, spec.tensors[slot]);
    if (parameters.size() != 1 || !can_be_whole(unit, slot, *parameters[0])) continue;
    const std::string module = module_of(*parameters[0]);
    can_be_.insert(module);
    if (!is_meant(module)) continue;
    whole.push_back({slot, tensor});
    build.matrix(tensor++, {{parameters[0]->name, spec.tensors[slot].rows}}, spec.tensors[slot].columns);
  }
  for (const ParameterSpec& parameter : spec.parameters)
    if (is_weight_of_module(parameter) && !can_be_.contains(module_of(parameter)))
      cannot_be_.insert(module_of(parameter));
  return whole;
}

void WholeModules::check(const std::string& origin) const {
  for (const std::string& end : lora_.modules_to_save) {
    const auto meant = [&](const std::string& module) { return is_meant(module, end); };
    const std::string named = cat(origin, ": '", quotation(end), "'");
    if (const auto found = std::ranges::find_if(cannot_be_, meant); found != cannot_be_.end())
      throw ConfigError(cat(named, " means ", *found,
                            " too, which is not built to be trained whole beside LoRA; expected some of ",
                            can_be_text()));
    if (std::ranges::none_of(can_be_, meant))
      throw ConfigError(cat(named, " means no module of this model; expected some of ", can_be_text()));
  }
  if (layout_.tied && !lora_.ties_embedding &&
      std::ranges::any_of(layout_.units[kEmbeddingUnit].parameters, [&](const ParameterSpec& spec) {
        return is_weight_of_module(spec) && is_meant(module_of(spec));
      }))
    throw ConfigError(
        cat(origin,
            ": ensure_weight_tying is false, so PEFT trained the embedding apart from the output "
            "matrix, which are one in this model; train it in PEFT with ensure_weight_tying=True, or "
            "beside a model whose config.json has tie_word_embeddings false and whose files hold "
            "lm_head.weight"));
}

bool WholeModules::can_be_whole(int unit, size_t slot, const ParameterSpec& spec) const {
  if (spec.stays || !is_weight_of_module(spec)) return false;
  const UnitSpec& of_model = layout_.units[static_cast<size_t>(unit)];
  // A bias beside it would be trained too.
  const auto is_beside = [&](const ParameterSpec& other) {
    return &other != &spec && other.name.starts_with(module_of(spec) + ".");
  };
  if (std::ranges::any_of(of_model.parameters, is_beside)) return false;
  // What layers are told beside x has a gradient that reaches the embedding, and that LoRA does not make.
  if (unit == kEmbeddingUnit)
    return slot == kWords && !layout_.layer_inputs && !layout_.embedding_read_backward;
  if (unit == kLayerInputsUnit && layout_.layer_inputs) return false;
  return of_model.tensors[slot].columns == 0 || (unit == layout_.head_unit() && slot == kOutputMatrix);
}

bool WholeModules::is_meant(const std::string& module, const std::string& end) const {
  const std::vector<std::string> others = inside_ ? names_inside(module) : std::vector<std::string>();
  return module.ends_with(end) ||
         std::ranges::any_of(others, [&](const std::string& name) { return name.ends_with(end); });
}

bool WholeModules::is_meant(const std::string& module) const {
  return std::ranges::any_of(lora_.modules_to_save,
                             [&](const std::string& end) { return is_meant(module, end); });
}

std::string WholeModules::can_be_text() const {
  std::set<std::string> names;
  for (const std::string& module : can_be_) names.insert(shortest_name(module));
  return joined(names);
}

// The shortest end of its name, cut at a point, that means nothing that is not built.
std::string WholeModules::shortest_name(const std::string& module) const {
  std::string name = last_name(module);
  const auto means = [&](const std::string& other) { return is_meant(other, name); };
  while (name.size() < module.size() && std::ranges::any_of(cannot_be_, means))
    name = module.substr(module.rfind('.', module.size() - name.size() - 2) + 1);
  return name;
}

}  // namespace trireme
