// What a step's work of one kind of layers is counted from (forecast/layer_kinds.h).
#pragma once

#include <optional>

#include "trireme/attention/delta_heads.h"
#include "trireme/attention/exchange_bytes.h"
#include "trireme/forecast/forecast_inputs.h"
#include "trireme/plan/layer_products.h"

namespace trireme {

struct KindWork {
  LayerProducts products;
  AttentionHeads heads;
  std::optional<DeltaNet> delta_net;  // in place of attention
  int64_t rank_value_heads = 0;       // of it
  int64_t rank_heads;
  double act_width;       // values of a token between its MLPs' products
  int64_t unit_elements;  // of a layer
  double pairs;           // of one head of a layer
  UlyssesExchangeBytes ulysses{};
  ExchangeBytes ring{};

  KindWork(const ForecastInputs& inputs, double pairs_of_layer)
      : products(inputs.model),
        heads(inputs.model.common_heads()),
        delta_net(inputs.model.delta_net),
        rank_heads(inputs.rank_heads),
        act_width(static_cast<double>(inputs.model.mlp_width())),
        unit_elements(inputs.model.unit_elements[inputs.model.first_layer_unit()]),
        pairs(pairs_of_layer) {
    if (delta_net) {
      const int ranks = inputs.ulysses * inputs.ring;
      rank_value_heads = delta_share(delta_net->heads, inputs.sp_rank, ranks).value.size();
      if (ranks > 1)
        ulysses = column_exchange_bytes(delta_net->heads, {inputs.tokens, inputs.ulysses, inputs.ring},
                                        inputs.batch, inputs.storage_bytes, inputs.sp_rank);
      return;
    }
    const HeadShares shares = share_heads(heads.query, heads.key_value, inputs.ulysses);
    const SampleLayout layout{inputs.tokens, inputs.ulysses, inputs.ring};
    const ExchangeExtents extents{inputs.batch, heads.width, inputs.storage_bytes, kFloat_bytes,
                                  inputs.head_chunks};
    if (inputs.ulysses > 1) ulysses = ulysses_exchange_bytes(extents, layout, shares, inputs.sp_rank);
    if (inputs.ring > 1)
      ring = (inputs.gathers_keys ? gather_exchange_bytes : ring_exchange_bytes)(extents, layout, shares,
                                                                                 inputs.sp_rank);
  }

  // Values of a token.
  double query_width() const {  // of o
    return static_cast<double>(delta_net ? delta_net->heads.output_columns() : heads.query_width());
  }
  double key_width() const { return static_cast<double>(heads.key_value_width()); }
  double projected_key_width() const { return static_cast<double>(heads.projected_keys() * heads.width); }
  double qkv_width() const {
    return delta_net ? static_cast<double>(delta_net->heads.columns()) : query_width() + 2 * key_width();
  }
  double gate_width() const { return delta_net ? query_width() : static_cast<double>(heads.gate_width()); }
};

}  // namespace trireme
