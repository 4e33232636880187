// LoRA (arXiv 2106.09685): the model stays as it is, and beside some of its matrices W [n, k] two small ones are
// trained, of which the product is added: W + scale B A, with A [r, k] and B [n, r]. Norms, the embedding and
// the output matrix may be trained whole beside them, from the model's values on (PEFT's modules_to_save).
//
//   LoraOptions (flags, or the folder of an adapter) -> LoraConfig -> Adapters of a ModelLayout (make_adapters.h)
//
// Names, scale and first values are PEFT's (huggingface.co/docs/peft): A is uniform in +-1/sqrt(k), B zero.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/option_list.h"
#include "trireme/model/model_layout.h"

namespace trireme {

// Before the names of a model that PEFT has adapted.
inline constexpr const char* kAdapterPrefix = "base_model.model.";
// Behind a module's name.
inline constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";
// LoraConfig::targets that are all projections of a layer.
inline constexpr const char* kAllLinear = "all-linear";

// Of options and of files alike, so that a run that begins can go on.
inline constexpr int64_t kMostLoraRank = 1 << 14;
inline constexpr OptionRange kLoraAlphas = above(0, 1e9);

struct LoraOptions {
  int64_t rank = 0;  // r; 0: no adapters, unless `adapter` says more
  double alpha = 32;
  bool rslora = false;
  std::string targets = kAllLinear;
  std::string modules_to_save = {};  // trained whole: "embed_tokens,norm"
  // PEFT's folder, or a checkpoint of a run with LoRA; empty: fresh adapters.
  std::filesystem::path adapter = {};
  uint64_t seed = 0;  // of fresh ones

  bool given() const { return rank > 0 || !adapter.empty(); }
};

// What is trained in place of the model; with what it begins.
void list_lora_options(OptionList& list, LoraOptions& lora);
void list_adapter_option(OptionList& list, LoraOptions& lora);
// The names that list_lora_options gives; and of these those with another value than unless they are given.
std::vector<std::string> lora_option_names();
std::vector<std::string> given_lora_options(const LoraOptions& lora);

struct LoraConfig {
  int64_t rank = 0;  // 0: there are no adapters
  double alpha = 0;
  bool rslora = false;               // scale alpha / sqrt(r) (arXiv 2312.03732) in place of alpha / r
  std::vector<std::string> targets;  // last names of modules, such as "q_proj"
  // Ends of the names of modules that are trained whole, as PEFT reads them: "norm" is every norm.
  std::vector<std::string> modules_to_save = {};
  // ensure_weight_tying: a tied embedding is trained as the output matrix that it is too.
  bool ties_embedding = true;

  double scale() const;
};

// Those that ask for the same as fresh adapters.
LoraOptions lora_options_of(const LoraConfig& lora, uint64_t seed);

// What LoraOptions::targets and modules_to_save mean: names between commas.
std::vector<std::string> lora_targets(const std::string& text);
std::vector<std::string> lora_modules_to_save(const std::string& text);
// LoraConfig::modules_to_save: the order says nothing.
std::vector<std::string> sorted_unique(std::vector<std::string> names);

// "LoRA of rank 16, scale 2, of q_proj, k_proj; embed_tokens, norm whole"
std::string text_of_lora(const LoraConfig& lora, const std::vector<std::string>& modules);
// For a line of text: the adapter of a model inside a whole one names each norm by itself.
LoraConfig with_few_modules_named(LoraConfig lora);

// Whether a parameter of Adapters::units is one of LoRA's matrices; else it is one of the model, trained whole.
bool is_lora_matrix(const ParameterSpec& spec);
// Fresh flat fp32 values of LoRA's matrices, by the seed and each parameter's name alone.
at::Tensor initial_adapter_values(const UnitSpec& unit, uint64_t seed);

// W += scale B A, and what is trained whole: flat fp32 values of a unit and of its adapters, of which `trained_unit`
// is the number.
void merge_adapters(const UnitSpec& unit, at::Tensor& flat, const Adapters& adapters, size_t trained_unit,
                    const at::Tensor& adapter_flat);

}  // namespace trireme
