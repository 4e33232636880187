// A permutation of [0, count), keyed by (seed, epoch), that needs no memory: a balanced Feistel network over
// the next even power of two, applied again until its result is below count (Black and Rogaway, "Ciphers with
// arbitrary finite domains", 2002). The same on every machine.
#pragma once

#include <array>
#include <cstdint>

namespace trireme {

class SampleOrder {
 public:
  SampleOrder(int64_t count, uint64_t seed, int64_t epoch);
  // The sample at index `i` of the order, i in [0, count).
  int64_t operator[](int64_t i) const;

 private:
  uint64_t count_ = 0;
  int half_bits_ = 1;
  std::array<uint64_t, 6> round_keys_{};
};

}  // namespace trireme
