// What the gated delta rule (delta_rule.h) allocates, in integers: by these the forecast counts. No torch
// here.
//
// Beside inputs and results there is one segment of n chunks of C = 64 tokens at a time, so
// the memory does not grow with the sequence; only the states that forward keeps do, Dk Dv elements a head
// and segment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trireme {

inline constexpr int64_t kDeltaChunk_tokens = 64;
// On a CPU a segment should lie in cache. A GPU has fewer calls in larger ones: with few heads of all samples
// more chunks, as many matrices a call.
inline constexpr int64_t kDeltaSegmentOfCpu_chunks = 8;
constexpr int64_t delta_segment_of_gpu_chunks(int64_t heads) {
  constexpr int64_t kMatrices = 1024, kLeast = 32, kMost = 256;
  return std::clamp(kMatrices / std::max<int64_t>(1, heads), kLeast, kMost);
}
constexpr int64_t delta_segment_chunks(bool on_cpu, int64_t heads) {
  return on_cpu ? kDeltaSegmentOfCpu_chunks : delta_segment_of_gpu_chunks(heads);
}

// V / K if value heads are that many neighbours of each key head in turn, else 0: keys are spread first, one
// for each value head.
inline int64_t even_key_group(const std::vector<int64_t>& key_of_value, int64_t key_heads) {
  const auto values = static_cast<int64_t>(key_of_value.size());
  if (key_heads == 0 || values % key_heads != 0) return 0;
  const int64_t group = values / key_heads;
  for (int64_t value = 0; value < values; ++value)
    if (key_of_value[static_cast<size_t>(value)] != value / group) return 0;
  return group;
}

struct DeltaRuleSizes {
  int64_t batch = 0;
  int64_t tokens = 0;  // of a sample
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_width = 0;
  int64_t value_width = 0;
  int64_t segment_chunks = kDeltaSegmentOfCpu_chunks;
  int64_t value_bytes = 4;  // of an element of the computation
  bool spread = false;      // key heads are not read by equally many neighbours each

  constexpr int64_t chunks() const { return (tokens + kDeltaChunk_tokens - 1) / kDeltaChunk_tokens; }
  constexpr int64_t segments() const { return (chunks() + segment_chunks - 1) / segment_chunks; }
  // Of a segment: tokens of all samples, and of these the rows of all value heads, of all heads that keys are
  // multiplied for.
  constexpr int64_t segment_tokens() const {
    return batch * kDeltaChunk_tokens * std::min(chunks(), segment_chunks);
  }
  constexpr int64_t value_rows() const { return segment_tokens() * value_heads; }
  constexpr int64_t key_rows() const { return segment_tokens() * (spread ? value_heads : key_heads); }
  constexpr int64_t state() const { return batch * value_heads * key_width * value_width; }
  constexpr bool ragged() const { return tokens % kDeltaChunk_tokens != 0; }
};

constexpr int64_t delta_rule_states_bytes(const DeltaRuleSizes& z) {
  return z.segments() * z.state() * z.value_bytes;
}

// DeltaSegment (delta_rule_segment.h), and what lasts from one to the next.
constexpr int64_t delta_rule_segment_bytes(const DeltaRuleSizes& z) {
  const int64_t of_keys = z.key_rows() * (2 * z.key_width + 2);
  const int64_t of_values = z.value_rows() * (4 * kDeltaChunk_tokens + 3 * z.key_width + 3);
  const int64_t unspread = z.spread ? 2 * z.segment_tokens() * z.key_heads * z.key_width : 0;
  const int64_t sums_in_fp64 = 3 * z.value_rows();
  const int64_t documents = z.segment_tokens() * (9 * kDeltaChunk_tokens + 4);
  return z.value_bytes * (of_keys + of_values + unspread + z.state()) + 8 * sums_in_fp64 + documents;
}

// Of whole segments and of the rest behind them, which alone may end within a chunk.
template <typename Bytes>
constexpr int64_t delta_rule_peak_bytes(const DeltaRuleSizes& z, const Bytes& of_segment) {
  const int64_t segment_tokens = z.segment_chunks * kDeltaChunk_tokens, rest = z.tokens % segment_tokens;
  const auto of_tokens = [&](int64_t tokens) {
    DeltaRuleSizes segment = z;
    segment.tokens = tokens;
    return of_segment(segment);
  };
  return std::max(z.tokens >= segment_tokens ? of_tokens(segment_tokens) : 0, rest > 0 ? of_tokens(rest) : 0);
}

constexpr int64_t delta_rule_forward_of_segment_bytes(const DeltaRuleSizes& z) {
  const int64_t recurrence = z.value_rows() * z.value_width * (z.ragged() ? 5 : 3);
  const int64_t triangles = z.value_rows() * 2 * kDeltaChunk_tokens;
  return delta_rule_segment_bytes(z) + z.value_bytes * std::max(recurrence, triangles);
}

constexpr int64_t delta_rule_backward_of_segment_bytes(const DeltaRuleSizes& z) {
  const int64_t states = 2 * std::min(z.chunks(), z.segment_chunks) * z.state();
  const int64_t of_values = z.value_rows() * (3 * z.value_width + 3 * kDeltaChunk_tokens + 3 * z.key_width);
  const int64_t of_keys = z.key_rows() * (3 * kDeltaChunk_tokens + 2 * z.key_width);
  const int64_t passing = std::max(z.value_rows() * std::max(z.key_width, z.value_width),
                                   z.key_rows() * z.key_width * (z.ragged() ? 4 : 3));
  return delta_rule_segment_bytes(z) + z.value_bytes * (states + of_values + of_keys + passing) +
         8 * 2 * z.value_rows();
}

// At most beside o and the states that are kept.
constexpr int64_t delta_rule_forward_bytes(const DeltaRuleSizes& z) {
  return delta_rule_peak_bytes(z, delta_rule_forward_of_segment_bytes);
}
// At most beside the gradients.
constexpr int64_t delta_rule_backward_bytes(const DeltaRuleSizes& z) {
  return delta_rule_peak_bytes(z, delta_rule_backward_of_segment_bytes);
}

// FLOPs of the chunks' products of one head for one token, forward: of the state, and within the chunk.
// Backward makes them again and has twice as many beside, after a forward for the states where they were not
// kept.
constexpr double delta_rule_forward_flops(int64_t key_width, int64_t value_width) {
  constexpr double C = kDeltaChunk_tokens;
  const auto k = static_cast<double>(key_width), v = static_cast<double>(value_width);
  return 6 * k * v + 4 * C * k + 4 * C * v + C * C;
}

}  // namespace trireme
