#include "trireme/model/initial_values.h"

#include <ATen/CPUGeneratorImpl.h>

#include "trireme/model/unit_weights.h"

namespace trireme {

at::Generator generator_of_parameter(const std::string& name, uint64_t seed) {
  // FNV-1a over the name, then the seed.
  uint64_t key = 0xcbf29ce484222325ULL;
  for (const unsigned char letter : name) key = (key ^ letter) * 0x100000001b3ULL;
  key = (key ^ (seed + 0x9e3779b97f4a7c15ULL)) * 0x100000001b3ULL;
  return at::detail::createCPUGenerator(key ^ (key >> 29));
}

at::Tensor initial_unit_values(const UnitSpec& unit, const ModelConfig& config, uint64_t seed) {
  const at::NoGradGuard no_grad;
  at::Tensor flat = at::zeros({unit.elements}, at::kFloat);
  for (const ParameterSpec& spec : unit.parameters) {
    at::Tensor values = parameter_view(flat, spec);
    if (spec.initial == InitialValues::decay) {
      // A uniform between 0 and 16, as transformers draws it; 0 would have no logarithm.
      values.uniform_(0.01, 16, generator_of_parameter(spec.name, seed)).log_();
    } else if (spec.initial == InitialValues::ones) {
      values.fill_(1);
    } else if (spec.shape.size() > 1) {
      values.normal_(0, config.initializer_range, generator_of_parameter(spec.name, seed));
    } else if (!spec.name.ends_with(".bias")) {
      values.fill_(config.norms_add_one ? 0 : 1);
    }
  }
  return flat;
}

}  // namespace trireme
