#include "trireme/model/lora.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/model_family.h"
#include "trireme/model/unit_weights.h"

namespace trireme {
namespace {

constexpr const char* kAllLinear = "all-linear";
constexpr std::string_view kWeight = ".weight";

std::string module_of(const ParameterSpec& spec) {
  return spec.name.substr(0, spec.name.size() - kWeight.size());
}
std::string last_name(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

// As PEFT reads a target: the module's name, or the end of it behind a point.
bool is_meant(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

// The parameters that lie in a tensor, in its order.
std::vector<const ParameterSpec*> parameters_of(const UnitSpec& unit, const TensorSpec& tensor) {
  std::vector<const ParameterSpec*> found;
  for (const ParameterSpec& spec : unit.parameters)
    if (spec.offset >= tensor.offset && spec.offset < tensor.offset + tensor.rows * tensor.columns)
      found.push_back(&spec);
  return found;
}

class AdapterBuilder {
 public:
  AdapterBuilder(const ModelConfig& config, const LoraConfig& lora)
      : slots_(config.family->adapted_slots != nullptr ? config.family->adapted_slots(config)
                                                       : std::vector<size_t>()),
        lora_(lora),
        all_(lora.targets == std::vector<std::string>{kAllLinear}) {}

  void add_layer(const UnitSpec& unit) {
    // A for each slot, B for each parameter.
    UnitBuilder build(unit.name + ".lora", kAdapterPrefix, 2 * unit.parameters.size());
    std::vector<AdaptedMatrix> matrices;
    size_t tensor = 0;
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
    made_.units.push_back(build.finish());
    made_.matrices.push_back(std::move(matrices));
  }

  Adapters finish(const std::string& origin) {
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
    if (std::ranges::all_of(made_.matrices, [](const auto& of_layer) { return of_layer.empty(); }))
      throw ConfigError(cat(origin, ": LoRA is built for decoders, and this model is none"));
    made_.rank = lora_.rank;
    made_.scale = lora_.scale();
    return std::move(made_);
  }

 private:
  bool targets(const std::string& module) {
    if (all_) return true;
    bool meant = false;
    for (const std::string& target : lora_.targets)
      if (is_meant(module, target)) {
        meant = true;
        met_.insert(target);
      }
    return meant;
  }

  const std::vector<size_t> slots_;
  const LoraConfig& lora_;
  const bool all_;
  Adapters made_;
  std::set<std::string> can_be_, adapted_, passed_over_;  // last names of modules
  std::set<std::string> met_;                             // targets
};

}  // namespace

void list_lora_options(OptionList& list, LoraOptions& lora) {
  list.count(
          "lora_r", lora.rank, from_to(0, kMostLoraRank),
          "train LoRA matrices of this rank beside the model's, which stay as they are; 0: train the model")
      .on_resume(ResumeRule::by_content);
  list.real("lora_alpha", lora.alpha, kLoraAlphas, "what they add is scaled by this over --lora_r")
      .on_resume(ResumeRule::by_content);
  list.flag("use_rslora", lora.rslora, "scaled by --lora_alpha over the root of --lora_r")
      .on_resume(ResumeRule::by_content);
  list.text("lora_target_modules", lora.targets,
            "modules that have them, with commas: q_proj,v_proj; all-linear: every projection of a layer")
      .on_resume(ResumeRule::by_content);
}

void list_adapter_option(OptionList& list, LoraOptions& lora) {
  list.path("adapter", lora.adapter,
            "folder of a LoRA adapter, PEFT's or Trireme's, that belongs to the model")
      .on_resume(ResumeRule::by_content);
}

double LoraConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

LoraOptions lora_options_of(const LoraConfig& lora, uint64_t seed) {
  return {.rank = lora.rank,
          .alpha = lora.alpha,
          .rslora = lora.rslora,
          .targets = joined(lora.targets, ","),
          .seed = seed};
}

std::vector<std::string> lora_targets(const std::string& text) {
  const auto is_of_name = [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_' || letter == '.' || letter == '-';
  };
  std::vector<std::string> names(1);
  for (const char letter : text) {
    if (letter == ',')
      names.emplace_back();
    else if (letter != ' ')
      names.back() += letter;
  }
  for (const std::string& name : names)
    if (name.empty() || !std::ranges::all_of(name, is_of_name) || (name == kAllLinear && names.size() > 1))
      throw ConfigError(cat("--lora_target_modules is '", quotation(text),
                            "'; expected names with commas between them, such as q_proj,v_proj, or ",
                            kAllLinear, " alone; lists and regular expressions are not read"));
  return names;
}

Adapters make_adapters(const ModelConfig& config, const ModelLayout& layout, const LoraConfig& lora,
                       const std::string& origin) {
  AdapterBuilder build(config, lora);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    build.add_layer(layout.units[static_cast<size_t>(layout.layer_unit(layer))]);
  return build.finish(origin);
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

std::string text_of_lora(const LoraConfig& lora, const std::vector<std::string>& modules) {
  return cat("LoRA of rank ", lora.rank, ", scale ", number_text(lora.scale()), ", of ", joined(modules));
}

at::Tensor initial_adapter_values(const UnitSpec& unit, uint64_t seed) {
  const at::NoGradGuard no_grad;
  at::Tensor flat = at::zeros({unit.elements}, at::kFloat);
  for (const ParameterSpec& spec : unit.parameters) {
    if (!spec.name.ends_with(kLoraA)) continue;
    // kaiming_uniform_(a=sqrt(5)), as torch.nn.Linear begins.
    const double bound = 1 / std::sqrt(static_cast<double>(spec.shape[1]));
    parameter_view(flat, spec).uniform_(-bound, bound, generator_of_parameter(spec.name, seed));
  }
  return flat;
}

void merge_adapters(const UnitSpec& unit, at::Tensor& flat, const Adapters& adapters, size_t layer,
                    const at::Tensor& adapter_flat) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> weights = bind_weights(flat, unit);
  const std::vector<at::Tensor> trained = bind_weights(adapter_flat, adapters.units[layer]);
  for (const AdaptedMatrix& matrix : adapters.matrices[layer])
    for (size_t part = 0; part < matrix.rows.size(); ++part) {
      const AdaptedRows& rows = matrix.rows[part];
      const at::Tensor a =
          trained[matrix.a].narrow(0, static_cast<int64_t>(part) * adapters.rank, adapters.rank);
      weights[matrix.slot]
          .narrow(0, rows.first_row, rows.rows)
          .addmm_(trained[rows.b], a, /*beta=*/1, /*alpha=*/adapters.scale);
    }
}

}  // namespace trireme
