// How many Ulysses ranks and how many ring ranks share one sequence, when --sp gives their product N alone.
//
// The rule: Ulysses as far as its shares stay equal and its exchanges inside one machine, the ring for the
// rest.
//
//   U = the largest divisor of N and of the ranks of a machine that divides the query heads; where only 1
//       does, the largest that is at most the query heads, with uneven shares
//   R = N / U
//
// Ulysses moves (2H + 2K) D elements a token once a layer, whatever N; the ring moves 2 K D elements of every
// other rank's tokens, which grows with R: so R is kept small (docs/methods/ring.md). No torch here.
#pragma once

#include <cstdint>

#include "trireme/base/sample_layout.h"

namespace trireme {

// `machine_ranks`: of every machine of the run a divisor of its ranks, the same number on every rank
// (World::common_machine_ranks).
SequenceDegrees choose_degrees(int sp, int64_t query_heads, int machine_ranks);

}  // namespace trireme
