// The products of a layer of one kind with its weights, and with what LoRA holds beside them.
#pragma once

#include <cstdint>

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

// Of weights [k, n] each.
struct LayerProducts {
  struct Sides {
    int64_t k, n;
    // Of experts: how many such weights multiply a token, and the share of a tile's rows that each has.
    double weights = 1, rows_share = 1;
    int64_t adapted = 0;  // of LoRA: the parameters that it holds; 0: none beside it
    // By which a token is multiplied.
    double elements() const { return weights * static_cast<double>(k) * static_cast<double>(n); }
  };
  Sides qkv, out, router, gate_up, down, shared_gate_up, shared_down, shared_gate, input_gate,
      input_projection;
  double adapted_share = 0;  // of what LoRA of all of them would be

  explicit LayerProducts(const ModelSizes& model) {
    const AttentionHeads heads = model.common_heads();
    const int64_t halves = model.tiles == TileFormula::encoder ? 1 : 2;
    qkv = {model.hidden, heads.projected_width()};
    out = {heads.query_width(), model.hidden};
    if (model.delta_net) {
      const DeltaHeads& delta = model.delta_net->heads;
      qkv.n = model.delta_net->projected_columns();
      out.k = delta.output_columns();
      filter_elements = static_cast<double>(delta.convolved_columns() * model.delta_net->taps);
    }
    router = {model.hidden, model.experts};
    const auto mlps = static_cast<double>(model.mlps_per_token());
    const double rows_share = 1 / model.tokens_per_expert_row();
    gate_up = {model.hidden, halves * model.intermediate, mlps, rows_share};
    down = {model.intermediate, model.hidden, mlps, rows_share};
    const int64_t shared = model.shared_intermediate;
    shared_gate_up = {model.hidden, 2 * shared};
    shared_down = {shared, model.hidden};
    shared_gate = {model.hidden, shared > 0 && !model.experts_beside_mlp ? 1 : 0};
    input_gate = {model.hidden, model.layer_input_width};
    input_projection = {model.layer_input_width, model.hidden};
    if (!model.adapted()) return;
    qkv.adapted = model.delta_net ? model.delta_net->projection_modules() : 1 + heads.projections_of_keys();
    out.adapted = 1;
    if (model.experts == 0) gate_up.adapted = 2, down.adapted = 1;
    if (shared > 0) shared_gate_up.adapted = 2, shared_down.adapted = 1;
    if (shared_gate.n > 0) shared_gate.adapted = 1;
    if (model.has_layer_inputs()) input_gate.adapted = input_projection.adapted = 1;
    int64_t of_all = 0;
    for (const Sides& sides :
         {qkv, out, gate_up, down, shared_gate_up, shared_down, shared_gate, input_gate, input_projection})
      if (sides.adapted > 0) of_all += model.adapters->rank * (sides.adapted * sides.k + sides.n);
    const size_t first_layer = model.first_layer_unit() - static_cast<size_t>(model.lowest_trained_unit());
    adapted_share =
        static_cast<double>(model.adapters->lora_elements.at(first_layer)) / static_cast<double>(of_all);
  }
  double filter_elements = 0;  // of a DeltaNet's convolution
  double elements() const {
    return filter_elements + qkv.elements() + out.elements() + router.elements() + gate_up.elements() +
           down.elements() + shared_gate_up.elements() + shared_down.elements() + shared_gate.elements() +
           input_gate.elements() + input_projection.elements();
  }
};

// Of an encoder's head, before the output matrix.
inline LayerProducts::Sides encoder_head_dense(const ModelSizes& model) {
  return {model.hidden, model.hidden};
}

inline LayerProducts::Sides output_matrix(const ModelSizes& model) {
  return {model.hidden, model.vocab};
}

// Of what all layers are told beside x.
inline LayerProducts::Sides layer_inputs_projection(const ModelSizes& model) {
  return {model.hidden, model.layers * model.layer_input_width};
}

}  // namespace trireme
