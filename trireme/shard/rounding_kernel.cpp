// Plain loops that the compiler vectorises. Compiled once for each x86-64 level, in its own namespace.
#include "trireme/shard/rounding_kernel.h"

#include "trireme/shard/rounded_bits.h"

namespace trireme::TRIREME_SIMD_NAMESPACE {

void round_block(const uint32_t* from, uint16_t* to, int64_t count, uint64_t key, uint64_t first_element) {
  constexpr int64_t kPiece = 256;
  constexpr int64_t kGroups = kPiece / 4 + 1;  // a piece may begin inside a group
  // Four random numbers a word: written as words, read as quarters, in the byte order of x86.
  union {
    uint64_t words[kGroups];
    uint16_t numbers[4 * kGroups];
  } random;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t size = count - begin < kPiece ? count - begin : kPiece;
    const uint64_t element = first_element + static_cast<uint64_t>(begin);
    for (int64_t g = 0; g < kGroups; ++g)
      random.words[g] = rounding_word(key, element / 4 + static_cast<uint64_t>(g));
    const uint16_t* number = random.numbers + element % 4;
    const uint32_t* source = from + begin;
    uint16_t* target = to + begin;
    for (int64_t i = 0; i < size; ++i) target[i] = rounded_bits(source[i], number[i]);
  }
}

}  // namespace trireme::TRIREME_SIMD_NAMESPACE
