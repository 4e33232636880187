#include "trireme/model/make_adapters.h"

#include <algorithm>
#include <set>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/model/model_family.h"
#include "trireme/model/module_names.h"
#include "trireme/model/whole_modules.h"

namespace trireme {
namespace {

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
      if (matrix.rows == 0) continue;
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

}  // namespace

Adapters make_adapters(const ModelConfig& config, const ModelLayout& layout, const LoraConfig& lora,
                       const OriginOfModules& origin) {
  LowRank low_rank(config, lora);
  WholeModules whole_modules(layout, lora, !config.whole_type.empty());
  Adapters made{.rank = lora.rank, .scale = lora.scale()};
  for (int number = 0; number <= layout.head_unit(); ++number) {
    const UnitSpec& unit = layout.units[static_cast<size_t>(number)];
    const bool is_layer = number >= layout.layer_unit(0) && number < layout.head_unit();
    // A for each slot, B for each parameter, or the parameter itself.
    UnitBuilder build(unit.name + (is_layer ? ".lora" : ".whole"), kAdapterPrefix,
                      2 * unit.parameters.size());
    size_t tensor = 0;
    std::vector<AdaptedMatrix> matrices;
    if (is_layer) matrices = low_rank.add(unit, build, tensor);
    std::vector<WholeTensor> whole = whole_modules.add(number, build, tensor);
    if (!is_layer && whole.empty()) continue;
    if (made.units.empty()) made.first_unit = number;
    TRIREME_ASSERT(number == made.first_unit + std::ssize(made.units), "adapters of unit ", number,
                   " do not follow those before");
    made.units.push_back(build.finish());
    made.matrices.push_back(std::move(matrices));
    made.whole.push_back(std::move(whole));
  }
  low_rank.check(origin.targets);
  whole_modules.check(origin.modules_to_save);
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
