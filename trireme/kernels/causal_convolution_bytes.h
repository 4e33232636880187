// What the convolution over time holds beside its arguments and result: a block of tokens in fp32, some times
// over (causal_convolution.cpp). No torch here: the memory forecast counts by it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

// Values of a block: it stays in a CPU's cache; a GPU hides its launches behind more.
inline constexpr int64_t kConvolutionBlockOfCpu_values = int64_t{1} << 18;
inline constexpr int64_t kConvolutionBlockOfGpu_values = int64_t{1} << 22;

constexpr int64_t convolution_block_rows(int64_t columns, bool on_host) {
  const int64_t most = on_host ? kConvolutionBlockOfCpu_values : kConvolutionBlockOfGpu_values;
  return std::max<int64_t>(1, most / std::max<int64_t>(1, columns));
}

// Blocks of a sample's tokens at once. Forward: the sum, x widened, and x of its own document. Backward:
// d(sum), d(x), and a product beside, of which x is one where it is widened or masked.
struct ConvolutionBlocks {
  bool widened = false;  // values of 16 bits
  bool masked = false;   // documents are packed

  constexpr int64_t forward() const { return 1 + (widened ? 1 : 0) + (masked ? 1 : 0); }
  constexpr int64_t backward() const { return widened || masked ? 4 : 3; }
};
constexpr int64_t convolution_block_bytes(int64_t tokens, int64_t columns, bool on_host) {
  return std::min(tokens, convolution_block_rows(columns, on_host)) * columns * 4;
}

}  // namespace trireme
