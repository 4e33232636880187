// Looks for NaN and infinities, and says in whose row they are. As fast as memory gives the values; 16-bit
// ones on the host are looked at as they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "trireme/model/model_layout.h"

namespace trireme {

// The index of the first value of a flat tensor that is not finite. Any device, any float dtype.
std::optional<int64_t> first_not_finite(const at::Tensor& flat);
// to = from, rounded as masters are (kernels/split_master.h), both flat on the host with as many values; in
// the same pass, with all threads, what first_not_finite(from) says.
std::optional<int64_t> copy_and_check(const at::Tensor& from, const at::Tensor& to);

// A finite value of an fp32 tensor that would be infinite in this dtype; none where there is none.
std::optional<float> value_beyond(const at::Tensor& values, at::ScalarType dtype);

// Of an element of a parameter, counted row by row: "row 17 holds NaN".
std::string not_finite_text(const ParameterSpec& spec, int64_t element, double value);
// Of a parameter's values; none where all are finite.
std::optional<std::string> not_finite_row(const ParameterSpec& spec, const at::Tensor& values);
// Of a unit's flat values: "model.embed_tokens.weight (unit embedding), row 17 holds NaN".
std::optional<std::string> not_finite_row(const UnitSpec& unit, const at::Tensor& flat);

}  // namespace trireme
