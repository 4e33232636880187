// The numbers of a model's units, in the order in which forward gathers them: the embedding, what layers are
// told of their tokens where the model has it (layer_inputs.h), the layers, the head. No torch here.
#pragma once

#include <cstdint>

namespace trireme {

constexpr int kEmbeddingUnit = 0;
constexpr int kLayerInputsUnit = 1;
constexpr int layer_unit(int64_t layer, bool layer_inputs) {
  return static_cast<int>((layer_inputs ? kLayerInputsUnit : kEmbeddingUnit) + 1 + layer);
}

}  // namespace trireme
