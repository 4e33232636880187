// The sizes of a Gated DeltaNet (arXiv 2412.06464), which some layers have in place of attention (Qwen3.5).
#pragma once

#include "trireme/attention/delta_heads.h"

namespace trireme {

struct DeltaNet {
  DeltaHeads heads;
  int64_t taps = 4;  // of the convolution over time: a token and those before it

  // Of the recurrence of a layer in a training step, beside its products with matrices: a state of Dk x Dv is
  // read by a key, written and read by a query, and twice that backward.
  double flops_per_token() const {
    return 18 * static_cast<double>(heads.output_columns()) * static_cast<double>(heads.key_width);
  }
  bool operator==(const DeltaNet&) const = default;
};

}  // namespace trireme
