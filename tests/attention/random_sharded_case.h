// Attention over ranks, drawn at random: every mode, and the sizes at which borders go wrong.
#pragma once

#include <cstdint>

#include "tests/attention/sharded_case.h"

namespace trireme_test {

// The same seed gives the same case on every machine. At most 8 ranks; samples of 1 to 300 tokens, now and
// then fewer than ranks.
ShardedCase draw_case(uint64_t seed);

}  // namespace trireme_test
