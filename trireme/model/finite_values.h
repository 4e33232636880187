// Looks for NaN and infinities, and says in whose row they are. As fast as memory gives the values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "trireme/model/model_layout.h"

namespace trireme {

// The index of the first value of a flat tensor that is not finite. Any device, any float dtype.
std::optional<int64_t> first_not_finite(const at::Tensor& flat);

// Of a parameter's values: "row 17 holds NaN"; none where all are finite.
std::optional<std::string> not_finite_row(const ParameterSpec& spec, const at::Tensor& values);
// Of a unit's flat values: "model.embed_tokens.weight (unit embedding), row 17 holds NaN".
std::optional<std::string> not_finite_row(const UnitSpec& unit, const at::Tensor& flat);

}  // namespace trireme
