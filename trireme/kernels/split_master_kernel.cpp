// Plain loops that the compiler vectorises. Compiled once for each x86-64 level, in its own namespace.
#include "trireme/kernels/split_master_kernel.h"

#include "trireme/kernels/master_bits.h"

namespace trireme::TRIREME_SIMD_NAMESPACE {

void round_masters(const uint32_t* masters, uint16_t* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = value_of_master(masters[i]);
}

void split_masters(const uint32_t* __restrict masters, uint16_t* __restrict values, uint16_t* __restrict low,
                   int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = value_of_master(masters[i]);
    low[i] = low_of_master(masters[i]);
  }
}

void join_masters(const uint16_t* __restrict values, const uint16_t* __restrict low,
                  uint32_t* __restrict masters, int64_t count) {
  for (int64_t i = 0; i < count; ++i) masters[i] = master_of(values[i], low[i]);
}

}  // namespace trireme::TRIREME_SIMD_NAMESPACE
