// Bytes that the collectives allocate: rank_order_sum.cpp sums by these pieces, and the memory forecast
// counts by them. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

// Sums are made piece by piece: on a CPU their partial sums stay in the cache; on a GPU, where each operation
// of a piece costs a launch, pieces only bound the fp32 buffer of a sum that is kept in 16 bits.
constexpr int64_t kSumPieceOnHost_elements = 64 * 1024;
constexpr int64_t kSumPieceOnDevice_elements = 32 * 1024 * 1024;

// What reduce_scatter_sum of blocks holds beside its input, with a result in fp32: every rank's block of this
// rank's share, their sum, and on a CPU a piece of a 16-bit block, widened to be added.
constexpr int64_t reduce_scatter_bytes(int64_t share_elements, int ranks, int64_t element_bytes,
                                       bool on_host) {
  const bool widens = element_bytes != 4 && on_host;
  const int64_t piece_elements = widens ? std::min(kSumPieceOnHost_elements, share_elements) : 0;
  return share_elements * ranks * element_bytes + (share_elements + piece_elements) * 4;
}

// Beside input and result where each rank reads the others' memory: a piece's sum, another rank's piece, and
// of a 16-bit one its widened copy (rank_order_sum.cpp).
constexpr int64_t read_sum_buffer_bytes(int64_t share_elements, int64_t element_bytes, bool on_host) {
  const int64_t piece =
      std::min(on_host ? kSumPieceOnHost_elements : kSumPieceOnDevice_elements, share_elements);
  return piece * (4 + element_bytes + (element_bytes == 4 ? 0 : 4));
}

}  // namespace trireme
