// Masks as a kernel gets them, drawn at random, and what attention by calls (trireme/kernels/cuda_calls.h)
// must give on them, whatever device its kernels run on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/kernels/local_attention.h"
#include "trireme/kernels/mask.h"

#include "tests/kernels/attention_oracle.h"

namespace trireme_test {

struct DrawnMask {
  std::shared_ptr<const trireme::VisibleKeys> keys;
  int64_t batch = 1;
  std::string text;  // what was drawn
};

// Causal or full, with a window or none, documents or none; of whole samples, or of what the queries of one
// ring_index of a zig-zag ring see of all keys, or of those of one ring_index. No blocks. Samples have 1 to
// `most_tokens` tokens.
DrawnMask draw_mask(uint64_t seed, int64_t most_tokens);
// Whole samples of one document.
DrawnMask whole(trireme::Causality causality, int64_t tokens, int64_t batch = 2);

// The same as matrices.
SeenKeys seen_by(const trireme::VisibleKeys& keys, int64_t batch);

struct LawCase {
  std::vector<int> kv_of_query = {0};
  int64_t kv_heads = 1;
  int64_t width = 16;
  at::ScalarType dtype = at::kFloat;
  trireme::ResultDtype results = trireme::ResultDtype::of_input;
  at::Device device = at::kCPU;
  double cap = 0;
  double tolerance = 1e-5;  // of the largest entry of each result, or of 1
};
// Grouped heads that are even, uneven, and with a key/value head that no query uses.
LawCase draw_heads(uint64_t seed);
// The same in 16 bits, every third with results in fp32.
LawCase draw_in_16_bits(uint64_t seed, int64_t width, at::ScalarType dtype);

// Forward and backward equal the definition. q, k and v are views of one tensor, as the layers have them, of
// sample-major or token-major memory.
void expect_definition(trireme::LocalAttention& kernel, const DrawnMask& mask, const LawCase& c,
                       uint64_t seed);
// Keys cut in two: outputs merged with their lse, and gradients of each part computed from the merged output
// and lse, equal those of all keys.
void expect_parts_to_sum_up(trireme::LocalAttention& kernel, const DrawnMask& mask, const LawCase& c,
                            uint64_t seed);

}  // namespace trireme_test
