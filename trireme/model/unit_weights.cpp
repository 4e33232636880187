#include "trireme/model/unit_weights.h"

namespace trireme {

UnitWeights bind_weights(const at::Tensor& flat, const UnitSpec& unit) {
  UnitWeights weights(unit.tensors.size());
  for (size_t slot = 0; slot < weights.size(); ++slot) {
    const auto& [offset, rows, columns] = unit.tensors[slot];
    if (rows == 0) continue;
    weights[slot] = columns == 0 ? flat.narrow(0, offset, rows)
                                 : flat.narrow(0, offset, rows * columns).view({rows, columns});
  }
  return weights;
}

at::Tensor parameter_view(const at::Tensor& flat, const ParameterSpec& spec) {
  return flat.narrow(0, spec.offset, spec.elements).view(spec.shape);
}

}  // namespace trireme
