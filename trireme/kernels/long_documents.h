// Which documents of a packed mask get calls of their own, of FlashAttention-4 or cuDNN, and how long these
// are. cuDNN computes a dense causal square 1.75 to 1.87 times as fast as FlashAttention-2 does (on an H100,
// both ways together: docs/benchmarks/history/2026-11-26-gpu.md), but takes no segments and aligns its diagonal
// at the first key; FlashAttention-4 is as it is here, and faster.
// FlashAttention-4 takes long documents whole. For cuDNN one of n tokens is cut:
//
//   rows [0, m), keys [0, m)    a causal square: a dense call
//   rows [m, n), keys [0, n)    causal at the last key: a segment, in one call with the short documents
//
// libtorch builds a graph for every new size (42 ms and more, each way), so m is one of 16 lengths an octave:
// the longest up to n. Of lengths that are evenly drawn, the rest has 4 % of the pairs, at most 12 %. No
// torch here.
#pragma once

#include <cstdint>
#include <limits>

namespace trireme {

// Whether samples have few lengths, as an engine's windows have, or any. Of any length, a sample that is one
// long document is cut as above too: else each length would have a graph of its own.
enum class SampleLengths { few, any };

// Of a kernel's dense calls of causal documents: those of graphs, these and those of documents that are all
// rows of a sample, or any, where no graph is built.
enum class DenseLengths { of_graphs, of_graphs_and_samples, any };

inline constexpr int64_t kNeverAlone = std::numeric_limits<int64_t>::max();

// Pairs of query and key x query heads x head width from which a document gains: 14 FLOPs each, both ways,
// take 0.9 ms of cuDNN and 1.6 ms of FlashAttention-2. Two calls and the copies of what they give are some 15
// launches, 0.2 ms.
inline constexpr int64_t kLeastPairValues = int64_t{1} << 35;

// What a dense call takes at least. Smaller ones are not worth a graph; libtorch knows of cuDNN versions that
// refuse fewer rows, and refuses single rows itself (check_cudnn_tensor_shapes in sdp_utils.cpp).
inline constexpr int64_t kLeastDenseRows = 64;
inline constexpr int64_t kLeastDenseWidth = 32, kMostDenseWidth = 128;

// Of heads; else a dense call refuses them.
constexpr bool dense_takes_width(int64_t width) {
  return width % 8 == 0 && width >= kLeastDenseWidth && width <= kMostDenseWidth;
}

// Between two lengths of graphs in the octave that `tokens`, 1 or more, is in: 16 lengths an octave.
int64_t graph_length_step(int64_t tokens);

// m of a document of `tokens`, 1 or more. 4096 gives 4096, 4500 gives 4352.
int64_t tokens_of_graph(int64_t tokens);

// Tokens from which a document of so many query heads of this rank is better alone: one of the lengths above,
// or kNeverAlone. 4,096 with 32 heads of 128.
int64_t least_tokens_alone(int64_t query_heads, int64_t width, int64_t least_pair_values = kLeastPairValues);

}  // namespace trireme
