// How fast this process multiplies matrices, to compare a training step's speed with.
#pragma once

#include <vector>

#include <ATen/ATen.h>

namespace trireme {

// The rate of [rows, inner] x [inner, columns], by the median over the repetitions.
struct MatmulRate {
  int64_t rows = 0;
  int64_t inner = 0;
  int64_t columns = 0;
  double flops_per_second = 0;
};

// Rates of a few shapes of a transformer, each repeated for about `seconds` on this process's threads, but
// those that would take 40 times as long. Not collective, but ranks that share a machine should measure at
// the same time.
std::vector<MatmulRate> measure_matmul_rates(at::Device device, at::ScalarType dtype, double seconds);

// The best of those rates, in FLOP/s.
double best_matmul_rate(at::Device device, at::ScalarType dtype, double seconds);
// The device's peak, in FLOP/s: the fastest repetition of any shape, which a busy machine disturbs least.
// Takes about `seconds` for each shape, and skips shapes too large to be repeated often in that time.
double peak_matmul_rate(at::Device device, at::ScalarType dtype, double seconds);

}  // namespace trireme
