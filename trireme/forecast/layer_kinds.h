// The kinds of layers of a model: with the model's heads; with full attention where those have others (Gemma
// 4); with a DeltaNet in place of attention (Qwen3.5). Each is the same run of a model of its layers alone,
// all of one kind, so that a layer's bytes and work are counted by one.
#pragma once

#include <vector>

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

enum class LayerKind { common, full_heads, delta_net };

struct LayerKinds {
  std::vector<LayerKind> kinds;        // those that the model has, in the order of the enumeration
  std::vector<ForecastInputs> inputs;  // of each; the recompute plan stays the whole model's
  std::vector<size_t> of_layer;        // the kind of each layer: an index of inputs
  // Of all layers, those of a kind.
  double share(size_t kind) const {
    return static_cast<double>(inputs[kind].model.layers) / static_cast<double>(of_layer.size());
  }
};
// Of a model without full_heads and delta_layers one kind: the inputs as they are.
LayerKinds layer_kinds(const ForecastInputs& inputs);

}  // namespace trireme
