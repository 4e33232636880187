#include "trireme/forecast/layer_kinds.h"

#include <algorithm>

#include "trireme/forecast/sequence_ranks.h"

namespace trireme {
namespace {

bool has_window(const ModelSizes& model, size_t layer) {
  return !model.layer_windows.empty() && model.layer_windows[layer] > 0;
}

// A model of the layers that have a window, or of those that have none.
ModelSizes layers_of(const ModelSizes& whole, bool windows) {
  ModelSizes model = whole;
  model.full_heads.reset();
  if (!windows) {
    model.heads = whole.full_heads->query;
    model.kv_heads = whole.full_heads->key_value;
    model.head_dim = whole.full_heads->width;
    model.keys_are_values = whole.full_heads->keys_are_values;
  }
  // An embedding and a head stay around what is of layers.
  const auto keep_layers = [&](std::vector<int64_t>& values, size_t first) {
    const std::vector<int64_t> all = std::move(values);
    values.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      const bool of_layer = i >= first && i < first + static_cast<size_t>(whole.layers);
      if (!of_layer || has_window(whole, i - first) == windows) values.push_back(all[i]);
    }
  };
  keep_layers(model.layer_windows, 0);
  keep_layers(model.unit_elements, 1);
  keep_layers(model.adapter_elements, 0);
  if (windows) {
    model.layers = std::ssize(model.layer_windows);
    const int64_t longest = std::ranges::max(model.layer_windows);
    model.causal_tokens = std::min(whole.causal_tokens, longest);  // 0 of an encoder
  } else {
    model.layers = whole.layers - std::ranges::count_if(whole.layer_windows, [](int64_t w) { return w > 0; });
  }
  return model;
}

}  // namespace

LayerKinds layer_kinds(const ForecastInputs& inputs) {
  const ModelSizes& model = inputs.model;
  const auto layers = static_cast<size_t>(model.layers);
  LayerKinds kinds{{}, std::vector<size_t>(layers)};
  if (!model.full_heads) {
    kinds.inputs = {inputs};
    return kinds;
  }
  for (const bool windows : {true, false}) {
    const size_t kind = kinds.inputs.size();
    bool any = false;
    for (size_t layer = 0; layer < layers; ++layer) {
      if (has_window(model, layer) != windows) continue;
      kinds.of_layer[layer] = kind;
      any = true;
    }
    if (!any) continue;
    ForecastInputs of_kind = inputs;
    of_kind.model = layers_of(model, windows);
    kinds.inputs.push_back(
        with_sequence_ranks(std::move(of_kind), inputs.ulysses, inputs.ring, inputs.sp_rank));
  }
  return kinds;
}

}  // namespace trireme
