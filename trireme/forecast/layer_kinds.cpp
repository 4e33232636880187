#include "trireme/forecast/layer_kinds.h"

#include <algorithm>

#include "trireme/forecast/sequence_ranks.h"

namespace trireme {
namespace {

LayerKind kind_of(const ModelSizes& model, size_t layer) {
  if (!model.delta_layers.empty() && model.delta_layers[layer]) return LayerKind::delta_net;
  const bool window = !model.layer_windows.empty() && model.layer_windows[layer] > 0;
  return model.full_heads && !window ? LayerKind::full_heads : LayerKind::common;
}

// A model of the layers of one kind, of those that share keys or of the others.
ModelSizes model_of(const ModelSizes& whole, LayerKind kind, bool share_keys) {
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
  const auto layers = static_cast<size_t>(whole.layers);
  const auto is_of = [&](size_t layer) {
    return kind_of(whole, layer) == kind && whole.shares_keys(layer) == share_keys;
  };
  model.layers = 0;
  for (size_t layer = 0; layer < layers; ++layer) model.layers += is_of(layer) ? 1 : 0;
  // An embedding and a head stay around what is of layers.
  const auto keep_layers = [&](std::vector<int64_t>& values, size_t first) {
    const std::vector<int64_t> all = std::move(values);
    values.clear();
    for (size_t i = 0; i < all.size(); ++i)
      if (i < first || i >= first + layers || is_of(i - first)) values.push_back(all[i]);
  };
  keep_layers(model.layer_windows, 0);
  keep_layers(model.unit_elements, whole.first_layer_unit());
  keep_layers(model.adapter_elements, 0);
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
  const auto add = [&](LayerKind kind, bool share_keys) {
    bool any = false;
    for (size_t layer = 0; layer < layers; ++layer) {
      if (kind_of(model, layer) != kind || model.shares_keys(layer) != share_keys) continue;
      result.of_layer[layer] = result.kinds.size();
      any = true;
    }
    if (!any) return;
    ForecastInputs of_kind = inputs;
    of_kind.model = model_of(model, kind, share_keys);
    result.kinds.push_back(kind);
    result.inputs.push_back(
        with_sequence_ranks(std::move(of_kind), inputs.ulysses, inputs.ring, inputs.sp_rank));
  };
  for (const LayerKind kind : {LayerKind::common, LayerKind::full_heads, LayerKind::delta_net})
    for (const bool share_keys : {false, true}) add(kind, share_keys);
  return result;
}

}  // namespace trireme
