// Plain loops that the compiler vectorises. Compiled once for each x86-64 level, in its own namespace.
#include "trireme/shard/rounding_kernel.h"

#include "trireme/base/splitmix64.h"

namespace trireme::TRIREME_SIMD_NAMESPACE {

void round_block(const uint32_t* from, uint16_t* to, int64_t count, uint64_t key, uint64_t first_element) {
  constexpr int64_t kPiece = 256;
  constexpr int64_t kGroups = kPiece / 4 + 1;  // a piece may begin inside a group
  // Four random numbers a word, in the order of x86's memory: words are written, quarters read.
  union {
    uint64_t words[kGroups];
    uint16_t numbers[4 * kGroups];
  } random;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t size = count - begin < kPiece ? count - begin : kPiece;
    const uint64_t element = first_element + static_cast<uint64_t>(begin);
    const uint64_t state = key + element / 4 * kSplitmix64Step;
    for (int64_t g = 0; g < kGroups; ++g)
      random.words[g] = splitmix64(state + static_cast<uint64_t>(g) * kSplitmix64Step);
    const uint16_t* number = random.numbers + element % 4;
    const uint32_t* source = from + begin;
    uint16_t* target = to + begin;
    for (int64_t i = 0; i < size; ++i) {
      const uint32_t bits = source[i], sign = bits & 0x80000000u;
      const auto magnitude =
          static_cast<int32_t>(bits & 0x7fffffffu);  // signed: vectors compare those faster
      auto rounded = static_cast<int32_t>(static_cast<uint32_t>(magnitude) + number[i]);
      rounded = rounded > 0x7f7fffff ? 0x7f7fffff : rounded;  // finite stays finite
      rounded = magnitude >= 0x7f800000 ? magnitude : rounded;
      rounded = magnitude > 0x7f800000 ? 0x7fc00000 : rounded;  // a NaN whose upper half alone is infinity
      target[i] = static_cast<uint16_t>((static_cast<uint32_t>(rounded) | sign) >> 16);
    }
  }
}

}  // namespace trireme::TRIREME_SIMD_NAMESPACE
