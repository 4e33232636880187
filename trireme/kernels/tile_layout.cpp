#include "trireme/kernels/tile_layout.h"

#include <string.h>
#include <utility>

namespace trireme::TRIREME_SIMD_NAMESPACE {
namespace {

// A row of a square block is one vector of 64 bytes.
template <typename Word>
struct Block {
  static constexpr int kSide = 64 / sizeof(Word);
  typedef Word Row __attribute__((vector_size(64)));

  // Swaps the blocks of `Step` that lie off the diagonal of each block of 2 Step: after steps of 1, 2, ..
  // half the side the whole is transposed.
  template <int Step>
  static inline void swap_blocks(Row* rows) {
    for (int row = 0; row < kSide; ++row)
      if ((row & Step) == 0)
        swap_lanes<Step>(rows[row], rows[row + Step], std::make_integer_sequence<int, kSide>{});
  }
  template <int Step, int... lanes>
  static inline void swap_lanes(Row& upper, Row& lower, std::integer_sequence<int, lanes...> /*all*/) {
    const Row a = upper, b = lower;
    upper = __builtin_shufflevector(a, b, ((lanes & Step) != 0 ? kSide + lanes - Step : lanes)...);
    lower = __builtin_shufflevector(a, b, ((lanes & Step) != 0 ? kSide + lanes : lanes + Step)...);
  }

  static void transpose(const Word* from, int64_t stride, Word* to, int64_t to_stride) {
    Row rows[kSide];
    for (int row = 0; row < kSide; ++row) memcpy(&rows[row], from + row * stride, sizeof(Row));
    swap_blocks<1>(rows);
    swap_blocks<2>(rows);
    swap_blocks<4>(rows);
    swap_blocks<8>(rows);
    if constexpr (kSide > 16) swap_blocks<16>(rows);
    for (int row = 0; row < kSide; ++row) memcpy(to + row * to_stride, &rows[row], sizeof(Row));
  }
};

template <typename Word>
void transpose(const Word* from, int64_t stride, int64_t rows, int64_t columns, Word* to, int64_t to_stride) {
  constexpr int kSide = Block<Word>::kSide;
  for (int64_t row = 0; row < rows; row += kSide)
    for (int64_t column = 0; column < columns; column += kSide) {
      const Word* source = from + row * stride + column;
      Word* target = to + column * to_stride + row;
      if (rows - row >= kSide && columns - column >= kSide) {
        Block<Word>::transpose(source, stride, target, to_stride);
        continue;
      }
      for (int64_t i = 0; i < kSide && row + i < rows; ++i)
        for (int64_t j = 0; j < kSide && column + j < columns; ++j)
          target[j * to_stride + i] = source[i * stride + j];
    }
}

void interleave(const uint16_t* first, const uint16_t* second, int64_t columns, uint32_t* to) {
  for (int64_t i = 0; i < columns; ++i)
    to[i] = static_cast<uint32_t>(first[i]) | static_cast<uint32_t>(second[i]) << 16;
}

}  // namespace

constexpr TileLayout kTileLayout = {&transpose<uint16_t>, &transpose<uint32_t>, &interleave};

}  // namespace trireme::TRIREME_SIMD_NAMESPACE
