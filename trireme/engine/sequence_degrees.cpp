#include "trireme/engine/sequence_degrees.h"

namespace trireme {

SequenceDegrees choose_degrees(int sp, int64_t query_heads, int machine_ranks) {
  int even = 1, uneven = 1;
  for (int degree = 1; degree <= sp && degree <= query_heads; ++degree) {
    if (sp % degree != 0 || machine_ranks % degree != 0) continue;
    uneven = degree;
    if (query_heads % degree == 0) even = degree;
  }
  const int ulysses = even > 1 ? even : uneven;
  return {ulysses, sp / ulysses};
}

}  // namespace trireme
