#include "trireme/cli/weight_dtype.h"

#include "trireme/base/error.h"

namespace trireme {

at::ScalarType parse_weight_dtype(const std::string& name) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    if (name == name_of_weight_dtype(dtype)) return dtype;
  throw ConfigError(
      cat("weights of dtype '", name, "' are not written; expected float32, bfloat16 or float16"));
}

const char* name_of_weight_dtype(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bfloat16" : dtype == at::kHalf ? "float16" : "float32";
}

at::ScalarType dtype_of_model(const ModelConfig& config) {
  for (const char* key : {"torch_dtype", "dtype"})
    if (const auto found = config.raw.find(key); found != config.raw.end() && found->is_string()) {
      try {
        return parse_weight_dtype(found->get<std::string>());
      } catch (const ConfigError& error) {
        throw ConfigError(cat("config.json of the model: ", key, ": ", error.what(), "; choose by --dtype"));
      }
    }
  return at::kFloat;
}

}  // namespace trireme
