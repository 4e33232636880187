#include "trireme/model/make_adapters.h"

#include <algorithm>
#include <set>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/model/language_model.h"
#include "trireme/model/model_family.h"

namespace trireme {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string module_of(const ParameterSpec& spec) {
  return spec.name.substr(0, spec.name.size() - kWeight.size());
}
std::string last_name(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

// The parameters that lie in a tensor, in its order.
std::vector<const ParameterSpec*> parameters_of(const UnitSpec& unit, const TensorSpec& tensor) {
  const int64_t end = tensor.offset + tensor.rows * std::max<int64_t>(tensor.columns, 1);
  std::vector<const ParameterSpec*> found;
  for (const ParameterSpec& spec : unit.parameters)
    if (spec.offset >= tensor.offset && spec.offset < end) found.push_back(&spec);
  return found;
}

// LoRA's two matrices beside those of layers.
class LowRank {
 public:
  LowRank(const ModelConfig& config, const LoraConfig& lora)
      : slots_(config.family->adapted_slots != nullptr ? config.family->adapted_slots(config)
                                                       : std::vector<size_t>()),
        lora_(lora),
        all_(lora.targets == std::vector<std::string>{kAllLinear}) {}

  // `tensor`: the next one of `build`.
  std::vector<AdaptedMatrix> add(const UnitSpec& unit, UnitBuilder& build, size_t& tensor) {
    std::vector<AdaptedMatrix> matrices;
    for (const size_t slot : slots_) {
      const TensorSpec& matrix = unit.tensors[slot];
      if (matrix.rows == 0 || matrix.experts > 1) continue;
      AdaptedMatrix adapted{.slot = slot, .a = tensor};
      std::vector<UnitBuilder::Rows> a;
      std::vector<std::string> modules;
      for (const ParameterSpec* spec : parameters_of(unit, matrix)) {
        const std::string module = module_of(*spec);
        can_be_.insert(last_name(module));
        if (!targets(module)) {
          passed_over_.insert(last_name(module));
          continue;
        }
        adapted_.insert(last_name(module));
        adapted.rows.push_back({(spec->offset - matrix.offset) / matrix.columns, spec->shape[0], ++tensor});
        a.push_back({cat(module, kLoraA), lora_.rank});
        modules.push_back(module);
      }
      if (adapted.rows.empty()) continue;
      build.matrix(adapted.a, a, matrix.columns);
      for (size_t part = 0; part < modules.size(); ++part)
        build.matrix(adapted.rows[part].b, {{cat(modules[part], kLoraB), adapted.rows[part].rows}},
                     lora_.rank);
      matrices.push_back(std::move(adapted));
      ++tensor;
    }
    return matrices;
  }

  void check(const std::string& origin) const {
    const std::string names = joined(can_be_);
    for (const std::string& target : lora_.targets)
      if (!all_ && !met_.contains(target))
        throw ConfigError(cat(origin, ": LoRA of '", quotation(target), "' is not built for this model; ",
                              names.empty() ? "none of its matrices can be adapted"
                                            : cat("expected some of ", names, ", or ", kAllLinear)));
    // Files name modules without their layer.
    for (const std::string& name : adapted_)
      if (passed_over_.contains(name))
        throw ConfigError(cat(origin, ": the targets name ", name,
                              " of some layers and not of others that have it, "
                              "which is not built; name it without its layer: ",
                              name));
    if (adapted_.empty())
      throw ConfigError(cat(origin, ": LoRA is built for decoders, and this model is none"));
  }

 private:
  // As PEFT reads a target: the module's name, or the end of it behind a point.
  bool targets(const std::string& module) {
    if (all_) return true;
    bool meant = false;
    for (const std::string& target : lora_.targets)
      if (module == target || module.ends_with("." + target)) {
        meant = true;
        met_.insert(target);
      }
    return meant;
  }

  const std::vector<size_t> slots_;
  const LoraConfig& lora_;
  const bool all_;
  std::set<std::string> can_be_, adapted_, passed_over_;  // last names of modules
  std::set<std::string> met_;                             // targets
};

// Norms, the embedding and the output matrix that are trained whole.
class WholeModules {
 public:
  WholeModules(const ModelLayout& layout, const LoraConfig& lora) : layout_(layout), lora_(lora) {}

  // `tensor`: the next one of `build`.
  std::vector<WholeTensor> add(int number, UnitBuilder& build, size_t& tensor) {
    const UnitSpec& unit = layout_.units[static_cast<size_t>(number)];
    std::vector<WholeTensor> whole;
    std::set<std::string> built;
    for (size_t slot = 0; slot < unit.tensors.size(); ++slot) {
      const std::vector<const ParameterSpec*> parameters = parameters_of(unit, unit.tensors[slot]);
      if (parameters.size() != 1 || !can_be_whole(number, slot, *parameters[0])) continue;
      const std::string module = module_of(*parameters[0]);
      can_be_.insert(last_name(module));
      if (!is_meant(module)) continue;
      built.insert(module);
      whole.push_back({slot, tensor});
      build.matrix(tensor++, {{parameters[0]->name, unit.tensors[slot].rows}}, unit.tensors[slot].columns);
    }
    for (const ParameterSpec& spec : unit.parameters)
      if (spec.name.ends_with(kWeight) && !built.contains(module_of(spec)) && is_meant(module_of(spec)))
        not_built_.insert(module_of(spec));
    return whole;
  }

  void check(const std::string& origin) const {
    const std::string expected = cat("; expected some of ", joined(can_be_));
    for (const std::string& name : lora_.modules_to_save)
      if (!met_.contains(name))
        throw ConfigError(cat(origin, ": the model has no module '", quotation(name),
                              "' with weights of its own",
                              name.ends_with("lm_head") && layout_.tied
                                  ? " (its output matrix is the embedding: name embed_tokens)"
                                  : "",
                              expected));
    if (!not_built_.empty())
      throw ConfigError(cat(origin, ": to train ", *not_built_.begin(),
                            " whole beside LoRA is not built for this model", expected));
  }

 private:
  // A bias beside it would be trained too.
  bool can_be_whole(int number, size_t slot, const ParameterSpec& spec) const {
    if (spec.stays || !spec.name.ends_with(kWeight)) return false;
    const UnitSpec& unit = layout_.units[static_cast<size_t>(number)];
    const auto is_beside = [&](const ParameterSpec& other) {
      return &other != &spec && other.name.starts_with(module_of(spec) + ".");
    };
    if (std::ranges::any_of(unit.parameters, is_beside)) return false;
    // What layers are told beside x has a gradient that reaches the embedding, and that LoRA does not make.
    if (number == kEmbeddingUnit) return slot == kWords && !layout_.layer_inputs;
    if (number == kLayerInputsUnit && layout_.layer_inputs) return false;
    return unit.tensors[slot].columns == 0 || (number == layout_.head_unit() && slot == kOutputMatrix);
  }
  // As PEFT reads modules_to_save: the end of the name, in any file that may hold it.
  bool is_meant(const std::string& module) {
    std::vector<std::string> names = names_inside(module);
    names.push_back(module);
    bool meant = false;
    for (const std::string& end : lora_.modules_to_save)
      if (std::ranges::any_of(names, [&](const std::string& name) { return name.ends_with(end); })) {
        meant = true;
        met_.insert(end);
      }
    return meant;
  }

  const ModelLayout& layout_;
  const LoraConfig& lora_;
  std::set<std::string> can_be_;     // last names of modules
  std::set<std::string> not_built_;  // modules
  std::set<std::string> met_;        // LoraConfig::modules_to_save
};

}  // namespace

Adapters make_adapters(const ModelConfig& config, const ModelLayout& layout, const LoraConfig& lora,
                       const OriginOfModules& origin) {
  LowRank low_rank(config, lora);
  WholeModules whole_modules(layout, lora);
  Adapters made{.rank = lora.rank, .scale = lora.scale()};
  for (int number = 0; number <= layout.head_unit(); ++number) {
    const UnitSpec& unit = layout.units[static_cast<size_t>(number)];
    const bool is_layer = number >= layout.layer_unit(0) && number < layout.head_unit();
    // A for each slot, B for each parameter, or the parameter itself.
    UnitBuilder build(unit.name + ".lora", kAdapterPrefix, 2 * unit.parameters.size());
    size_t tensor = 0;
    std::vector<AdaptedMatrix> matrices;
    if (is_layer) matrices = low_rank.add(unit, build, tensor);
    std::vector<WholeTensor> whole = whole_modules.add(number, build, tensor);
    if (!is_layer && whole.empty()) continue;
    if (made.units.empty()) made.first_unit = number;
    made.units.push_back(build.finish());
    made.matrices.push_back(std::move(matrices));
    made.whole.push_back(std::move(whole));
  }
  low_rank.check(origin.targets);
  whole_modules.check(origin.modules_to_save);
  if (layout.tied && made.first_unit == kEmbeddingUnit && !lora.ties_embedding)
    throw ConfigError(
        cat(origin.modules_to_save,
            ": ensure_weight_tying is false, so PEFT trained the embedding apart from the output "
            "matrix, and they are one in this model; that is not built"));
  return made;
}

std::vector<std::string> adapted_modules(const Adapters& adapters) {
  std::vector<std::string> modules;
  for (const UnitSpec& unit : adapters.units)
    for (const ParameterSpec& spec : unit.parameters) {
      if (!spec.name.ends_with(kLoraB)) continue;
      const std::string name = last_name(spec.name.substr(0, spec.name.size() - kLoraB.size()));
      if (!contains(modules, name)) modules.push_back(name);
    }
  return modules;
}

}  // namespace trireme
