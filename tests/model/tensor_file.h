// Tensors under names, as a safetensors file holds them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/safetensors_writer.h"

namespace trireme::testing {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline void write_tensors(const std::filesystem::path& file, const NamedTensors& tensors) {
  const std::map<at::ScalarType, const char*> names{
      {at::kFloat, "F32"}, {at::kBFloat16, "BF16"}, {at::kHalf, "F16"}, {at::kChar, "I8"}};
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, values] : tensors)
    specs.push_back({name, names.at(values.scalar_type()), values.sizes().vec()});
  SafetensorsWriter writer(file, specs);
  for (const auto& [name, values] : tensors) {
    const at::Tensor plain = values.contiguous();
    writer.write(name, plain.const_data_ptr(), static_cast<int64_t>(plain.nbytes()));
  }
  writer.finish();
}

}  // namespace trireme::testing
