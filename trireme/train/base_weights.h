// The weights that a run with LoRA trains beside, which its checkpoints do not hold: what they were is told in
// trainer_state.json, and looked at before a checkpoint's adapters are used with a model.
#pragma once

#include <filesystem>

#include "trireme/base/json.h"
#include "trireme/base/safetensors.h"

namespace trireme {

// By file: how many tensors and bytes, and a digest of the header's entries and of spread blocks. `single`: as
// of SafetensorsSet.
Json describe_weights(const std::filesystem::path& dir, const char* single = kWeightsFile);

inline constexpr const char* kBaseWeightsField = "base_weights";  // of trainer_state.json

// Throws ConfigError where the weights in `model_dir` are not those that the checkpoint's adapters were trained
// beside. A checkpoint without LoRA passes.
void check_base_weights(const std::filesystem::path& checkpoint, const std::filesystem::path& model_dir);

}  // namespace trireme
