#include "trireme/kernels/transpose_tile.h"

#include <string.h>

namespace trireme::TRIREME_SIMD_NAMESPACE {
namespace {

constexpr int kSide = 32;
typedef uint16_t Row __attribute__((vector_size(kSide * sizeof(uint16_t))));

// Swaps the blocks of `Step` that lie off the diagonal of each block of 2 Step: after steps of 1, 2, .. 16
// the whole is transposed.
template <int Step>
inline void swap_blocks(Row* rows) {
  Row upper, lower;  // of the two rows' lanes, one after the other
  for (int lane = 0; lane < kSide; ++lane) {
    const bool second = (lane & Step) != 0;
    upper[lane] = static_cast<uint16_t>(second ? kSide + lane - Step : lane);
    lower[lane] = static_cast<uint16_t>(second ? kSide + lane : lane + Step);
  }
  for (int row = 0; row < kSide; ++row) {
    if ((row & Step) != 0) continue;
    const Row a = rows[row], b = rows[row + Step];
    rows[row] = __builtin_shuffle(a, b, upper);
    rows[row + Step] = __builtin_shuffle(a, b, lower);
  }
}

void transpose_whole(const uint16_t* from, int64_t stride, uint16_t* to, int64_t to_stride) {
  Row rows[kSide];
  for (int row = 0; row < kSide; ++row) memcpy(&rows[row], from + row * stride, sizeof(Row));
  swap_blocks<1>(rows);
  swap_blocks<2>(rows);
  swap_blocks<4>(rows);
  swap_blocks<8>(rows);
  swap_blocks<16>(rows);
  for (int row = 0; row < kSide; ++row) memcpy(to + row * to_stride, &rows[row], sizeof(Row));
}

void transpose(const uint16_t* from, int64_t stride, int64_t rows, int64_t columns, uint16_t* to,
               int64_t to_stride) {
  for (int64_t row = 0; row < rows; row += kSide)
    for (int64_t column = 0; column < columns; column += kSide) {
      const uint16_t* source = from + row * stride + column;
      uint16_t* target = to + column * to_stride + row;
      if (rows - row >= kSide && columns - column >= kSide) {
        transpose_whole(source, stride, target, to_stride);
        continue;
      }
      for (int64_t i = 0; i < kSide && row + i < rows; ++i)
        for (int64_t j = 0; j < kSide && column + j < columns; ++j)
          target[j * to_stride + i] = source[i * stride + j];
    }
}

}  // namespace

constexpr TransposeTile kTransposeTile = {&transpose};

}  // namespace trireme::TRIREME_SIMD_NAMESPACE
