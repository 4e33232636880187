// The kinds of layers of a model: with the model's heads; with full attention where those have others (Gemma
// 4); with a DeltaNet in place of attention (Qwen3.5). Those of a kind that take keys of an earlier layer (Gemma 4
// E2B) are counted apart. Each is the same run of a model of its layers alone, all alike, so that a layer's bytes
// and work are counted by one.
#pragma once

#include <vector>

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

enum class LayerKind { common, full_heads, delta_net };

struct LayerKinds {
  std::vector<LayerKind> kinds;  // those that the model has; one twice where some of its layers share keys
  std::vector<ForecastInputs> inputs;  // of each; the recompute plan stays the whole model's
  std::vector<size_t> of_layer;        // the kind of each layer: an index of inputs
  int64_t layers_of(LayerKind kind) const;
  // Of all layers, those of an entry.
  double share(size_t entry) const {
    return static_cast<double>(inputs[entry].model.layers) / static_cast<double>(of_layer.size());
  }
};
// Of a model without full_heads, delta_layers and layers_of_keys one kind: the inputs as they are.
LayerKinds layer_kinds(const ForecastInputs& inputs);

}  // namespace trireme
