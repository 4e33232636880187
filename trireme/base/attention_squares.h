// How much of the square of queries and keys attention's windows leave.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme {

// Pairs of query and key that one head of every layer computes, all layers together, for a document of
// `tokens` of full attention; causal attention computes half of them. `layer_windows`: keys before a query
// (and behind it, where attention is full) that a layer sees; 0: all.
inline double attention_squares(const std::vector<int64_t>& layer_windows, int64_t tokens) {
  const auto S = static_cast<double>(tokens);
  double squares = 0;
  for (const int64_t window : layer_windows) {
    const auto W = static_cast<double>(window);
    squares += window == 0 || window >= tokens ? S * S : 2 * W * S - W * W;
  }
  return squares;
}

}  // namespace trireme
