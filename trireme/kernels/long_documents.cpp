#include "trireme/kernels/long_documents.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "trireme/base/round_up.h"

namespace trireme {

int64_t graph_length_step(int64_t tokens) {
  constexpr uint64_t kLengthsOfOctave = 16;
  return static_cast<int64_t>(
      std::max<uint64_t>(1, std::bit_floor(static_cast<uint64_t>(tokens)) / kLengthsOfOctave));
}

int64_t tokens_of_graph(int64_t tokens) {
  return tokens - tokens % graph_length_step(tokens);
}

int64_t least_tokens_alone(int64_t query_heads, int64_t width, int64_t least_pair_values) {
  if (!dense_takes_width(width) || least_pair_values == kNeverAlone) return kNeverAlone;
  const double pairs =
      static_cast<double>(least_pair_values) / static_cast<double>(std::max<int64_t>(1, query_heads * width));
  const auto tokens = static_cast<int64_t>(std::ceil(std::sqrt(2 * pairs)));
  return std::max(kLeastDenseRows, round_up(tokens, graph_length_step(tokens)));
}

}  // namespace trireme
