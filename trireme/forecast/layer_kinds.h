// The kinds of layers of a model: those with a window, which have the model's heads, and those with full
// attention where these have others. Each is the same run of a model of its layers alone, all with one kind of
// heads, so that a layer's bytes and work are counted by one.
#pragma once

#include <vector>

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

struct LayerKinds {
  std::vector<ForecastInputs> inputs;  // without full_heads; the recompute plan stays the whole model's
  std::vector<size_t> of_layer;        // the kind of each layer: an index of inputs
  // Of all layers, those of a kind.
  double share(size_t kind) const {
    return static_cast<double>(inputs[kind].model.layers) / static_cast<double>(of_layer.size());
  }
};
// Of a model without full_heads one kind: the inputs as they are. Else, where there are both, those with a
// window and then those with full attention.
LayerKinds layer_kinds(const ForecastInputs& inputs);

}  // namespace trireme
