// A unit's flat buffer seen as the tensors of its specs: views, nothing is copied.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "trireme/model/model_layout.h"

namespace trireme {

// By the family's slot (an enumerator of its file): undefined where the model has no such parameter. Slot 0
// of a layer always exists: its dtype is the tile dtype. All are of one dtype.
using UnitWeights = std::vector<at::Tensor>;

UnitWeights bind_weights(const at::Tensor& flat, const UnitSpec& unit);

// One parameter, in its checkpoint's shape.
at::Tensor parameter_view(const at::Tensor& flat, const ParameterSpec& spec);

}  // namespace trireme
