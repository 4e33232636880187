// LoRA (arXiv 2106.09685): the model stays as it is, and beside some of its matrices W [n, k] two small ones are
// trained, of which the product is added: W + scale B A, with A [r, k] and B [n, r].
//
//   LoraOptions (flags, or the folder of an adapter) -> LoraConfig -> Adapters of a ModelLayout
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
#include "trireme/model/model_config.h"
#include "trireme/model/model_layout.h"

namespace trireme {

// Before the names of a model that PEFT has adapted.
inline constexpr const char* kAdapterPrefix = "base_model.model.";
// Behind a module's name.
inline constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";

// Of options and of files alike, so that a run that begins can go on.
inline constexpr int64_t kMostLoraRank = 1 << 14;
inline constexpr OptionRange kLoraAlphas = above(0, 1e9);

struct LoraOptions {
  int64_t rank = 0;  // r; 0: no adapters, unless `adapter` says more
  double alpha = 32;
  bool rslora = false;
  std::string targets = "all-linear";
  // PEFT's folder, or a checkpoint of a run with LoRA; empty: fresh adapters.
  std::filesystem::path adapter = {};
  uint64_t seed = 0;  // of fresh ones

  bool given() const { return rank > 0 || !adapter.empty(); }
};

// What is trained in place of the model; with what it begins.
void list_lora_options(OptionList& list, LoraOptions& lora);
void list_adapter_option(OptionList& list, LoraOptions& lora);

struct LoraConfig {
  int64_t rank = 0;  // 0: there are no adapters
  double alpha = 0;
  bool rslora = false;               // scale alpha / sqrt(r) (arXiv 2312.03732) in place of alpha / r
  std::vector<std::string> targets;  // last names of modules, such as "q_proj"

  double scale() const;
};

// Those that ask for the same as fresh adapters.
LoraOptions lora_options_of(const LoraConfig& lora, uint64_t seed);

// What LoraOptions::targets means where it is a list: names between commas.
std::vector<std::string> lora_targets(const std::string& text);

// The adapters of every layer's matrices that `lora` targets ("all-linear": of all that the family adapts).
// Throws ConfigError for a target that the model does not have, or that is not adapted; `origin` is named.
Adapters make_adapters(const ModelConfig& config, const ModelLayout& layout, const LoraConfig& lora,
                       const std::string& origin);

// The last names of the modules that are adapted, in any layer: "q_proj", "k_proj", ...
std::vector<std::string> adapted_modules(const Adapters& adapters);

// "LoRA of rank 16, scale 2, of q_proj, k_proj"
std::string text_of_lora(const LoraConfig& lora, const std::vector<std::string>& modules);

// Fresh flat fp32 values of a layer's adapters, by the seed and each parameter's name alone.
at::Tensor initial_adapter_values(const UnitSpec& unit, uint64_t seed);

// W += scale B A, of all that a layer adapts: flat fp32 values of the layer's unit and of its adapters.
void merge_adapters(const UnitSpec& unit, at::Tensor& flat, const Adapters& adapters, size_t layer,
                    const at::Tensor& adapter_flat);

}  // namespace trireme
