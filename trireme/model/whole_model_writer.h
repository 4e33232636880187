// Writes a model that also reads images with another language model inside (language_model.h): a copy of its
// folder, file by file, in which the language model's tensors have new values. Names, dtypes and the division
// into files stay.
#pragma once

#include <filesystem>
#include <functional>

#include <ATen/ATen.h>

#include "trireme/model/model_config.h"
#include "trireme/model/model_layout.h"

namespace trireme {

// Throws ConfigError unless `whole` holds a model that reads images too, with a language model as `trained`
// is but for its positions; DataError where its files lack a parameter or have one twice. Changes nothing.
// Returns its model_type.
std::string check_whole_model(const std::filesystem::path& whole, const ModelConfig& trained);

// Into an empty folder, from a model that check_whole_model passed. `unit_flat(u)` gives unit u's fp32 values
// and may be asked for a unit again. config.json is that of `whole`, with the positions of `config`. Weights
// in other formats than safetensors are left out. Throws ConfigError for a value beyond the range of a
// tensor's dtype.
void write_whole_model(const std::filesystem::path& out, const std::filesystem::path& whole,
                       const ModelConfig& config, const ModelLayout& layout,
                       const std::function<at::Tensor(int unit)>& unit_flat);

}  // namespace trireme
