#include "trireme/forecast/keep_order.h"

#include <algorithm>

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

// Of a token of a layer.
struct Cost {
  double product_flops;
  double bytes;
  double flops_a_byte() const { return product_flops / bytes; }
};

Cost cost_of(KeptPart part, const ForecastInputs& inputs) {
  const ModelSizes& model = inputs.model;
  const auto width = [&](int64_t heads) { return static_cast<double>(heads * model.head_dim); };
  const auto e = static_cast<double>(inputs.storage_bytes), t = static_cast<double>(inputs.tile_bytes);
  const auto m = static_cast<double>(model.hidden), i = static_cast<double>(model.intermediate);
  const double q = width(model.heads), qkv = width(model.heads + 2 * model.kv_heads);
  const Balance& balance = inputs.device_is_host ? kCpu : kGpu;
  const double sent = inputs.ulysses > 1 ? balance.link * e : 0;  // of a value
  // Head chunks keep q, k and v by tokens, and send them with attention, forward and backward.
  const bool chunked = inputs.head_chunks > 1;
  switch (part) {
    case KeptPart::attention: {
      const double keys = static_cast<double>(inputs.tokens) / 2;  // that a query of a causal sample sees
      return {4 * q * keys * balance.attention + (chunked ? q + qkv : q) * sent,
              q * e + static_cast<double>(model.heads) * kFloat_bytes};
    }
    case KeptPart::qkv: {
      const double by_heads = inputs.ulysses > 1 && !chunked ? q : 0;
      const double touched = m * (e + t) + (model.rotary_tables > 0 ? 2 * qkv * e : 0);
      return {2 * m * qkv + balance.memory * touched + (chunked ? 0 : (qkv + by_heads) * sent),
              (qkv + by_heads) * e};
    }
    case KeptPart::mlp:
      break;
  }
  const double products = q * m + (model.post_norms ? 3 : 2) * m * i;
  return {2 * products, (m + static_cast<double>(model.mlp_kept_width)) * t};
}

}  // namespace

KeepOrder::KeepOrder(const ForecastInputs& inputs) : KeepOrder(KeptPart::attention, inputs.model.layers) {
  if (inputs.recompute.checkpoint_every > 1 || inputs.offload.activations != Offload::none) return;
  parts_.assign(std::begin(kAllKeptParts), std::end(kAllKeptParts));
  std::ranges::stable_sort(parts_, [&](KeptPart a, KeptPart b) {
    return cost_of(a, inputs).flops_a_byte() > cost_of(b, inputs).flops_a_byte();
  });
}

KeptLayers KeepOrder::at(int64_t position) const {
  KeptLayers kept;
  for (const KeptPart part : parts_) {
    kept[part] = std::clamp<int64_t>(position, 0, layers_);
    position -= layers_;
  }
  return kept;
}

}  // namespace trireme
