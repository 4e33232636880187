// Tokens that any language can reproduce, so that programs can be compared step by step on the same data:
//
//   h_t = splitmix64((seed << 48) + (sample << 32) + t)        v = min(vocabulary, 1024)
//   x_0 = (h_0 >> 8) % v
//   x_t = (5 * x_{t-1} + 17) % v  where h_t % 4 != 0,  else (h_t >> 8) % v
//
// Three of four tokens follow from the token before, so that the loss falls as a model learns.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/data/token_batch.h"

namespace trireme {

// One sample of `length` token ids.
std::vector<int64_t> synthetic_tokens(uint64_t seed, uint64_t sample, int64_t length, int64_t vocabulary);

// Samples [first_sample, first_sample + B) as one micro-batch: tokens [B, s], those of layout.spans(rank) of
// S = layout.tokens. Each position's target is the token after it; a sample's last token has none.
TokenBatch synthetic_batch(uint64_t seed, uint64_t first_sample, int64_t batch, int64_t vocabulary,
                           const SampleLayout& layout, int rank);

}  // namespace trireme
