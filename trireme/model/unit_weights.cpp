#include "trireme/model/unit_weights.h"

namespace trireme {

std::vector<at::Tensor> bind_weights(const at::Tensor& flat, const UnitSpec& unit) {
  std::vector<at::Tensor> weights(unit.tensors.size());
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

void UnitWeights::adapt(const at::Tensor& flat, const Adapters& adapters, size_t trained_unit) {
  adapter_tensors_ = bind_weights(flat, adapters.units[trained_unit]);
  adapters_ = &adapters;
  trained_unit_ = trained_unit;
  for (const WholeTensor& whole : adapters.whole[trained_unit])
    tensors_[whole.slot] = adapter_tensors_[whole.tensor];
}

const AdaptedMatrix* UnitWeights::adapted(size_t slot) const {
  if (adapters_ == nullptr) return nullptr;
  for (const AdaptedMatrix& matrix : adapters_->matrices[trained_unit_])
    if (matrix.slot == slot) return &matrix;
  return nullptr;
}

at::Tensor parameter_view(const at::Tensor& flat, const ParameterSpec& spec) {
  return flat.narrow(0, spec.offset, spec.elements).view(spec.shape);
}

}  // namespace trireme
