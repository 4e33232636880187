// The dtypes that weights have in files, by the names of config.json.
#pragma once

#include <string>

#include <ATen/ATen.h>

#include "trireme/model/model_config.h"

namespace trireme {

// "float32", "bfloat16", "float16"; ConfigError for others.
at::ScalarType parse_weight_dtype(const std::string& name);
const char* name_of_weight_dtype(at::ScalarType dtype);
// torch_dtype (or dtype, its newer name) of config.json; fp32 if it has neither.
at::ScalarType dtype_of_model(const ModelConfig& config);

}  // namespace trireme
