#include "trireme/forecast/layer_kinds.h"

#include <algorithm>
#include <map>
#include <utility>

#include "trireme/forecast/sequence_ranks.h"

namespace trireme {
namespace {

LayerKind kind_of(const ModelSizes& model, size_t layer) {
  if (!model.delta_layers.empty() && model.delta_layers[layer]) return LayerKind::delta_net;
  const bool window = !model.layer_windows.empty() && model.layer_windows[layer] > 0;
  return model.full_heads && !window ? LayerKind::full_heads : LayerKind::common;
}

// A model of some layers of one kind, those that share keys or the others.
ModelSizes model_of(const ModelSizes& whole, LayerKind kind, bool share_keys,
                    const std::vector<size_t>& layers_of_kind) {
  ModelSizes model = whole;
  model.full_heads.reset();
  model.delta_layers.clear();
  model.layers_of_keys.clear();
  if (kind != LayerKind::delta_net) model.delta_net.reset();
  if (kind == LayerKind::full_heads) {
    model.heads = whole.full_heads->query;
    model.kv_heads = whole.full_heads->key_value;
    model.head_dim = whole.full_heads->width;
    model.keys_are_values = whole.full_heads->keys_are_values;
  }
  if (share_keys) {
    model.share_keys = true;
    model.keys_are_values = false;
    model.intermediate = whole.sharing_intermediate;
    model.mlp_kept_width = whole.sharing_mlp_kept_width;
  }
  model.layers = std::ssize(layers_of_kind);
  // An embedding and a head stay around what is of layers.
  const auto keep_layers = [&](std::vector<int64_t>& values, size_t first) {
    if (values.empty()) return;
    size_t kept = first;
    for (const size_t layer : layers_of_kind) values[kept++] = values[first + layer];
    for (size_t i = first + static_cast<size_t>(whole.layers); i < values.size(); ++i)
      values[kept++] = values[i];
    values.resize(kept);
  };
  keep_layers(model.layer_windows, 0);
  keep_layers(model.unit_elements, whole.first_layer_unit());
  if (model.adapters) {
    const size_t first = whole.first_layer_unit() - static_cast<size_t>(whole.lowest_trained_unit());
    keep_layers(model.adapters->unit_elements, first);
    keep_layers(model.adapters->lora_elements, first);
  }
  if (kind == LayerKind::common && whole.full_heads) {
    const int64_t longest = std::ranges::max(model.layer_windows);
    model.causal_tokens = std::min(whole.causal_tokens, longest);  // 0 of an encoder
  }
  return model;
}

}  // namespace

int64_t LayerKinds::layers_of(LayerKind kind) const {
  int64_t layers = 0;
  for (size_t entry = 0; entry < kinds.size(); ++entry)
    if (kinds[entry] == kind) layers += inputs[entry].model.layers;
  return layers;
}

LayerKinds layer_kinds(const ForecastInputs& inputs) {
  const ModelSizes& model = inputs.model;
  const auto layers = static_cast<size_t>(model.layers);
  LayerKinds result{{}, {}, std::vector<size_t>(layers)};
  if (!model.full_heads && model.delta_layers.empty() && model.layers_of_keys.empty()) {
    result.kinds = {model.delta_net ? LayerKind::delta_net : LayerKind::common};
    result.inputs = {inputs};
    return result;
  }
  std::map<std::pair<LayerKind, bool>, std::vector<size_t>> layers_of;  // by whether they share keys, too
  for (size_t layer = 0; layer < layers; ++layer)
    layers_of[{kind_of(model, layer), model.shares_keys(layer)}].push_back(layer);
  for (const auto& [kind_and_sharing, of_kind] : layers_of) {
    const auto& [kind, share_keys] = kind_and_sharing;
    for (const size_t layer : of_kind) result.of_layer[layer] = result.kinds.size();
    ForecastInputs alone = inputs;
    alone.model = model_of(model, kind, share_keys, of_kind);
    result.kinds.push_back(kind);
    result.inputs.push_back(
        with_sequence_ranks(std::move(alone), inputs.ulysses, inputs.ring, inputs.sp_rank));
  }
  return result;
}

}  // namespace trireme
