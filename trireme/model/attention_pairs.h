// Pairs of query and key that attention computes, and what they cost.
#pragma once

#include "trireme/model/attention_heads.h"

namespace trireme {

// Of one head, all layers of its kind together: of layers with the model's heads, and of layers with full
// attention where those have others.
struct AttentionPairs {
  double common = 0;
  double full = 0;

  AttentionPairs() = default;
  AttentionPairs(double common, double full = 0) : common(common), full(full) {}
  AttentionPairs& operator+=(const AttentionPairs& more) {
    common += more.common;
    full += more.full;
    return *this;
  }
  AttentionPairs operator*(double times) const { return {common * times, full * times}; }
  bool operator==(const AttentionPairs&) const = default;

  // Of a training step: q k' and p v forward, twice as much backward, each 2 D a pair; nothing is counted
  // that is computed again.
  double flops(const AttentionHeads& common_heads, const AttentionHeads& full_heads) const {
    return 12 * (static_cast<double>(common_heads.query_width()) * common +
                 static_cast<double>(full_heads.query_width()) * full);
  }
};

}  // namespace trireme
