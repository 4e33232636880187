#include "trireme/model/unit_weights.h"

namespace trireme {

UnitWeights bind_weights(const at::Tensor& flat, const UnitSpec& unit) {
  UnitWeights weights(unit.tensors.size());
  for (size_t slot = 0; slot < weights.size(); ++slot) {
    const TensorSpec& tensor = unit.tensors[slot];
    if (tensor.rows == 0) continue;
    weights[slot] =
        tensor.columns == 0
            ? flat.narrow(0, tensor.offset, tensor.rows)
            : flat.narrow(0, tensor.offset, tensor.rows * tensor.columns).view({tensor.rows, tensor.columns});
  }
  return weights;
}

at::Tensor parameter_view(const at::Tensor& flat, const ParameterSpec& spec) {
  return flat.narrow(0, spec.offset, spec.elements).view(spec.shape);
}

}  // namespace trireme
