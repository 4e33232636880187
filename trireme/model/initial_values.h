// The first values of what is trained from the beginning.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/ATen.h>

#include "trireme/model/model_layout.h"

namespace trireme {

// Fresh weights: normal(0, initializer_range) for matrices, 1 for norms (0 where they add 1), 0 for biases; a
// parameter's values depend on the seed and its name alone.
at::Tensor initial_unit_values(const UnitSpec& unit, const ModelConfig& config, uint64_t seed);
// By the seed and the name alone: a parameter gets the same values in any layout.
at::Generator generator_of_parameter(const std::string& name, uint64_t seed);

}  // namespace trireme
