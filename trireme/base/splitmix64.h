// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): one step from a state to a random 64-bit number. The
// stream of a seed is splitmix64(seed + i * kSplitmix64Step), i = 0, 1, ...
#pragma once

#include <cstdint>

namespace trireme {

constexpr uint64_t kSplitmix64Step = 0x9e3779b97f4a7c15ULL;

// Always inlined: kernel files compiled for several instruction sets use it, and must not leave a copy of it
// for the linker to choose from.
__attribute__((always_inline)) constexpr uint64_t splitmix64(uint64_t state) {
  uint64_t x = state + kSplitmix64Step;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace trireme
