#include "trireme/model/lora.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/split.h"
#include "trireme/model/initial_values.h"
#include "trireme/model/unit_weights.h"

namespace trireme {
namespace {

std::vector<std::string> names_between_commas(const std::string& text, const std::string& option,
                                              const std::string& expected) {
  const auto is_of_name = [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_' || letter == '.' || letter == '-';
  };
  std::vector<std::string> names = split(text, ',');
  for (std::string& name : names) {
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    if (name.empty() || !std::ranges::all_of(name, is_of_name))
      throw ConfigError(cat("--", option, " is '", quotation(text),
                            "'; expected names with commas between them, ", expected,
                            "; regular expressions are not read"));
  }
  return names;
}

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
      .with_commas()
      .on_resume(ResumeRule::by_content);
  list.text("lora_modules_to_save", lora.modules_to_save,
            "norms, embedding and output matrix that are trained whole beside them, with commas: "
            "embed_tokens,norm (every module whose name ends so)")
      .with_commas()
      .on_resume(ResumeRule::by_content);
}

void list_adapter_option(OptionList& list, LoraOptions& lora) {
  list.path("adapter", lora.adapter,
            "folder of a LoRA adapter, PEFT's or Trireme's, that belongs to the model")
      .on_resume(ResumeRule::by_content);
}

std::vector<std::string> lora_option_names() {
  LoraOptions lora;
  OptionList list;
  list_lora_options(list, lora);
  std::vector<std::string> names;
  for (const Option& option : list.options()) names.push_back(option.name);
  return names;
}

std::vector<std::string> given_lora_options(const LoraOptions& lora) {
  LoraOptions given = lora, unless_given;
  OptionList of_given, of_unless_given;
  list_lora_options(of_given, given);
  list_lora_options(of_unless_given, unless_given);
  std::vector<std::string> names;
  for (size_t i = 0; i < of_given.options().size(); ++i)
    if (of_given.options()[i].read() != of_unless_given.options()[i].read())
      names.push_back(of_given.options()[i].name);
  return names;
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
          .modules_to_save = joined(lora.modules_to_save, ","),
          .seed = seed};
}

std::vector<std::string> lora_targets(const std::string& text) {
  const std::string expected = cat("such as q_proj,v_proj, or ", kAllLinear, " alone");
  std::vector<std::string> names = names_between_commas(text, "lora_target_modules", expected);
  if (names.size() > 1 && contains(names, kAllLinear))
    throw ConfigError(cat("--lora_target_modules is '", quotation(text),
                          "'; expected names with commas between them, ", expected));
  return names;
}

std::vector<std::string> lora_modules_to_save(const std::string& text) {
  if (text.empty()) return {};
  return sorted_unique(names_between_commas(text, "lora_modules_to_save", "such as embed_tokens,norm"));
}

std::vector<std::string> sorted_unique(std::vector<std::string> names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string text_of_lora(const LoraConfig& lora, const std::vector<std::string>& modules) {
  return cat("LoRA of rank ", lora.rank, ", scale ", number_text(lora.scale()), ", of ", joined(modules),
             lora.modules_to_save.empty() ? "" : cat("; ", joined(lora.modules_to_save), " whole"));
}

LoraConfig with_few_modules_named(LoraConfig lora) {
  constexpr size_t kMostNamed = 8;
  if (const size_t count = lora.modules_to_save.size(); count > kMostNamed)
    lora.modules_to_save = {cat(count, " modules")};
  return lora;
}

bool is_lora_matrix(const ParameterSpec& spec) {
  return spec.name.ends_with(kLoraA) || spec.name.ends_with(kLoraB);
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

void merge_adapters(const UnitSpec& unit, at::Tensor& flat, const Adapters& adapters, size_t trained_unit,
                    const at::Tensor& adapter_flat) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> weights = bind_weights(flat, unit);
  const std::vector<at::Tensor> trained = bind_weights(adapter_flat, adapters.units[trained_unit]);
  for (const WholeTensor& whole : adapters.whole[trained_unit])
    weights[whole.slot].copy_(trained[whole.tensor]);
  for (const AdaptedMatrix& matrix : adapters.matrices[trained_unit])
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
