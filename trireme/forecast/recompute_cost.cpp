#include "trireme/forecast/recompute_cost.h"

#include <algorithm>

#include "trireme/base/attention_squares.h"
#include "trireme/forecast/layer_kinds.h"
#include "trireme/kernels/delta_rule_bytes.h"

namespace trireme {
namespace {

// FLOPs of a product that take as long as: a FLOP of attention, a byte of device memory that a token-wise
// operation reads or writes, a byte that a rank sends. Of an H100 and of a server's processor, by their order
// of magnitude: the rule compares parts that differ by more.
struct Balance {
  double attention;
  double memory;
  double link;
};
constexpr Balance kGpu{1.3, 200, 1800}, kCpu{1.5, 10, 100};

// That a query of a layer sees, on average over layers and documents.
double mean_keys(const ForecastInputs& inputs) {
  const ModelSizes& model = inputs.model;
  const int64_t tokens =
      inputs.document_tokens > 0 ? std::min(inputs.document_tokens, inputs.tokens) : inputs.tokens;
  std::vector<int64_t> windows = model.layer_windows;
  if (windows.empty()) windows.assign(static_cast<size_t>(model.layers), 0);
  const bool causal = model.causal_tokens > 0;
  return attention_squares(windows, tokens) / (causal ? 2 : 1) / static_cast<double>(model.layers * tokens);
}

// Of a layer with a DeltaNet: its output, which the rule gives, and its columns and gate, which one product
// gives.
PartCost cost_of_delta_net(KeptPart part, const ForecastInputs& inputs) {
  const DeltaHeads& heads = inputs.model.delta_net->heads;
  const auto e = static_cast<double>(inputs.storage_bytes), t = static_cast<double>(inputs.tile_bytes);
  const auto m = static_cast<double>(inputs.model.hidden), o = static_cast<double>(heads.output_columns());
  const auto columns = static_cast<double>(heads.columns());
  const Balance& balance = inputs.device_is_host ? kCpu : kGpu;
  const double sent = inputs.ulysses * inputs.ring > 1 ? balance.link * e : 0;
  if (part == KeptPart::attention)
    return {static_cast<double>(heads.value) * delta_rule_forward_flops(heads.key_width, heads.value_width) *
                    balance.attention +
                o * sent,
            o * e};
  return {2 * m * (columns + o) + balance.memory * m * (e + t) + columns * sent, (columns + o) * e};
}

// Of a layer, where all are of one kind.
PartCost cost_of_kind(KeptPart part, const ForecastInputs& inputs) {
  const ModelSizes& model = inputs.model;
  if (model.delta_net && part != KeptPart::mlp) return cost_of_delta_net(part, inputs);
  const AttentionHeads heads = model.common_heads();
  const auto e = static_cast<double>(inputs.storage_bytes), t = static_cast<double>(inputs.tile_bytes);
  const auto m = static_cast<double>(model.hidden), i = static_cast<double>(model.mlp_width());
  const auto q =
      static_cast<double>(model.delta_net ? model.delta_net->heads.output_columns() : heads.query_width());
  const double qkv = q + 2 * static_cast<double>(heads.key_value_width());
  const Balance& balance = inputs.device_is_host ? kCpu : kGpu;
  const double sent = inputs.ulysses > 1 ? balance.link * e : 0;  // of a value
  // Head chunks keep q, k and v by tokens, and send them with attention, forward and backward.
  const bool chunked = inputs.head_chunks > 1;
  switch (part) {
    case KeptPart::attention: {
      return {4 * q * mean_keys(inputs) * balance.attention + (chunked ? q + qkv : q) * sent,
              q * e + static_cast<double>(model.heads) * kFloat_bytes};
    }
    case KeptPart::qkv: {
      const double by_heads = inputs.ulysses > 1 && !chunked ? q : 0;
      const double touched = m * (e + t) + (model.rotary_tables > 0 ? 2 * qkv * e : 0);
      return {2 * m * static_cast<double>(heads.projected_width()) + balance.memory * touched +
                  (chunked ? 0 : (qkv + by_heads) * sent),
              (qkv + by_heads + static_cast<double>(heads.gate_width())) * e};
    }
    case KeptPart::mlp:
      break;
  }
  const double products = q * m + (model.post_norms ? 3 : 2) * m * i + m * static_cast<double>(model.experts);
  return {2 * products, (m + static_cast<double>(model.mlp_kept_width)) * t};
}

}  // namespace

PartCost cost_of(KeptPart part, const ForecastInputs& inputs) {
  const LayerKinds kinds = layer_kinds(inputs);
  PartCost mean{};
  for (size_t kind = 0; kind < kinds.inputs.size(); ++kind) {
    const PartCost cost = cost_of_kind(part, kinds.inputs[kind]);
    mean.product_flops += kinds.share(kind) * cost.product_flops;
    mean.bytes += kinds.share(kind) * cost.bytes;
  }
  return mean;
}

double product_flops_made_again(const RecomputePlan& plan, const ForecastInputs& inputs) {
  const PartCost attention = cost_of(KeptPart::attention, inputs), qkv = cost_of(KeptPart::qkv, inputs),
                 mlp = cost_of(KeptPart::mlp, inputs);
  const ModelSizes& model = inputs.model;
  const bool mlp_has_down = model.post_norms || model.tiles == TileFormula::encoder;
  const double down = mlp_has_down ? 0 : 2 * static_cast<double>(model.hidden * model.mlp_width());
  const double of_input = 4 * static_cast<double>(model.hidden * model.layer_input_width);
  double flops = 0;
  for (int64_t layer = 0; layer < plan.layers; ++layer) {
    const bool keeps_attention = layer >= plan.layers - plan.layers_keeping(KeptPart::attention);
    if (!keeps_attention) flops += attention.product_flops;
    if (layer < plan.layers - plan.layers_keeping(KeptPart::qkv)) flops += qkv.product_flops;
    if (layer < plan.layers - plan.layers_keeping(KeptPart::mlp)) flops += mlp.product_flops;
    if (plan.is_last_of_group(layer)) continue;
    flops += mlp.product_flops + down + of_input + (keeps_attention ? 0 : qkv.product_flops);
  }
  return flops;
}

}  // namespace trireme
