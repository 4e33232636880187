// A unit's flat buffer seen as the tensors of its specs: views, nothing is copied.
#pragma once

#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/model/model_layout.h"

namespace trireme {

// By the family's slot (an enumerator of its file): undefined where the model has no such parameter. Slot 0
// of a layer always exists: its dtype is the tile dtype. All are of one dtype.
class UnitWeights {
 public:
  UnitWeights() = default;
  UnitWeights(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}  // of bind_weights

  at::Tensor& operator[](size_t slot) { return tensors_[slot]; }
  const at::Tensor& operator[](size_t slot) const { return tensors_[slot]; }
  at::ScalarType dtype() const { return tensors_.front().scalar_type(); }

  // The flat values of the unit's adapters (LoRA), number `trained_unit` of these, of the same dtype. What is
  // trained whole takes its slot. `adapters` outlives this.
  void adapt(const at::Tensor& flat, const Adapters& adapters, size_t trained_unit);
  // What is trained beside the matrix of a slot: null where nothing is.
  const AdaptedMatrix* adapted(size_t slot) const;
  double adapter_scale() const { return adapters_->scale; }
  int64_t adapter_rank() const { return adapters_->rank; }
  // By its number among the adapters' tensors.
  const at::Tensor& adapter(size_t tensor) const { return adapter_tensors_[tensor]; }

 private:
  std::vector<at::Tensor> tensors_, adapter_tensors_;
  const Adapters* adapters_ = nullptr;
  size_t trained_unit_ = 0;
};

std::vector<at::Tensor> bind_weights(const at::Tensor& flat, const UnitSpec& unit);

// One parameter, in its checkpoint's shape.
at::Tensor parameter_view(const at::Tensor& flat, const ParameterSpec& spec);

}  // namespace trireme
