#include "trireme/data/sample_order.h"

#include <algorithm>
#include <bit>

#include "trireme/base/splitmix64.h"

namespace trireme {

SampleOrder::SampleOrder(int64_t count, uint64_t seed, int64_t epoch) : count_(static_cast<uint64_t>(count)) {
  const int bits = std::bit_width(count_ > 0 ? count_ - 1 : 0);
  half_bits_ = std::max(1, (bits + 1) / 2);
  uint64_t key = splitmix64(splitmix64(seed) ^ static_cast<uint64_t>(epoch));
  for (uint64_t& round_key : round_keys_) round_key = key = splitmix64(key);
}

int64_t SampleOrder::operator[](int64_t i) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto x = static_cast<uint64_t>(i);
  do {
    uint64_t left = x >> half_bits_, right = x & mask;
    for (const uint64_t key : round_keys_) {
      const uint64_t next = left ^ (splitmix64(right ^ key) & mask);
      left = right;
      right = next;
    }
    x = (left << half_bits_) | right;
  } while (x >= count_);
  return static_cast<int64_t>(x);
}

}  // namespace trireme
