// The sizes of a Gated DeltaNet (arXiv 2412.06464), which some layers have in place of attention (Qwen3.5,
// Qwen3-Next).
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "trireme/attention/delta_heads.h"

namespace trireme {

// The order of what a token is projected to, as files hold its rows.
enum class DeltaProjections {
  by_kind,      // q|k|v, b, a, z of all heads, four modules (Qwen3.5)
  by_key_head,  // q|k|v|z of each key head with its value heads, then b|a: two modules (Qwen3-Next)
};

struct DeltaNet {
  DeltaHeads heads;
  int64_t taps = 4;  // of the convolution over time: a token and those before it
  DeltaProjections projections = DeltaProjections::by_kind;

  int64_t projected_columns() const { return heads.columns() + heads.output_columns(); }
  int64_t projection_modules() const { return projections == DeltaProjections::by_kind ? 4 : 2; }

  // Of the recurrence of a layer in a training step, beside its products with matrices: a state of Dk x Dv is
  // read by a key, written and read by a query, and twice that backward.
  double flops_per_token() const {
    return 18 * static_cast<double>(heads.output_columns()) * static_cast<double>(heads.key_width);
  }
  bool operator==(const DeltaNet&) const = default;
};

// Of all layers, of which `layers` tells those with a DeltaNet.
inline double delta_flops_per_token(const std::optional<DeltaNet>& net, const std::vector<bool>& layers) {
  return net ? static_cast<double>(std::ranges::count(layers, true)) * net->flops_per_token() : 0;
}

}  // namespace trireme
