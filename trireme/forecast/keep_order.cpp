#include "trireme/forecast/keep_order.h"

#include <algorithm>

#include "trireme/forecast/recompute_cost.h"

namespace trireme {

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
