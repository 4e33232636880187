// A LoRA adapter in PEFT's form: a folder with adapter_config.json and adapter_model.safetensors. A checkpoint
// of a run with LoRA has the same adapter_config.json, beside its own files of weights.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include <ATen/ATen.h>

#include "trireme/base/json.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/lora.h"

namespace trireme {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";

struct AdapterFolder {
  LoraConfig config;
  std::string model;  // base_model_name_or_path; may be empty
  // model_type of the whole model, where a checkpoint's run trained the language model inside one; else empty.
  std::string whole_type;
  double dropout = 0;  // that its training used
};

bool is_adapter_folder(const std::filesystem::path& dir);
// Throws DataError, or ConfigError for what PEFT has and is not built (DoRA, other ranks for some modules, ...).
AdapterFolder read_adapter_config(const std::filesystem::path& dir);
// As an adapter names its model: org/name of what lies in the Hugging Face cache, else the absolute path.
std::string name_of_base_model(const std::filesystem::path& model_dir);
// adapter_config.json of a checkpoint: as PEFT reads it, beside AdapterFolder::whole_type.
Json adapter_config(const LoraConfig& lora, const ModelLayout& layout, const std::string& model,
                    const std::string& whole_type);

// Gives the layout the adapters that the options ask for: their own, or those of the folder that they name.
// Rank 0: none.
LoraConfig add_adapters(ModelLayout& layout, const ModelConfig& config, const LoraOptions& options);
// The config.json that an adapter's folder may hold, with which it was trained, as far as it tells of positions
// (rope, max_position_embeddings): `model` with these. Throws ConfigError where the rest is of another model.
ModelConfig with_positions_of_adapter(const ModelConfig& model, const std::filesystem::path& adapter);
// What a resumed run may not differ in: "none", or text_of_lora.
std::string lora_of_run(const ModelConfig& config, const LoraOptions& options);
std::string lora_of_checkpoint(const std::filesystem::path& checkpoint);

// The weights of such a folder, whose names are those of Adapters::units.
CheckpointReader open_adapter(const std::filesystem::path& dir);

// Into a folder that exists: adapter_model.safetensors and adapter_config.json, for PEFT. `adapter` is the
// checkpoint's; of the language model inside a whole model, names are those of the whole one.
// `unit_flat(trained_unit)` gives the fp32 values of each of ModelLayout::trained, one after the other.
void write_adapter(const std::filesystem::path& out_dir, const ModelLayout& layout,
                   const AdapterFolder& adapter,
                   const std::function<at::Tensor(int trained_unit)>& unit_flat);

}  // namespace trireme
