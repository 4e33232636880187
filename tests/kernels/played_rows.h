// Rows of random numbers in a played GPU's memory, and as fp64 for the oracle.
#pragma once

#include <random>
#include <type_traits>

#include "trireme/kernels/gpu_rows.h"

#include "tests/kernels/played_gpu.h"

namespace trireme::played {

template <typename T>
constexpr GpuNumber number_of() {
  return std::is_same_v<T, float>  ? GpuNumber::fp32
         : std::is_same_v<T, Bf16> ? GpuNumber::bf16
                                   : GpuNumber::fp16;
}

// One step of the format's last place, of numbers up to 1.
template <typename T>
constexpr double rounding_of() {
  return std::is_same_v<T, float> ? 1.2e-7 : std::is_same_v<T, Bf16> ? 7.9e-3 : 9.8e-4;
}

template <typename T>
std::vector<double> wide(const std::vector<T>& values) {
  std::vector<double> doubles;
  doubles.reserve(values.size());
  for (const T& value : values) doubles.push_back(widened(value));
  return doubles;
}

// `rows` rows of `width` numbers that lie `stride` elements apart, from element `offset` of an array on; what
// lies between is never written.
template <typename T>
class Rows {
 public:
  Rows(Gpu& gpu, int64_t rows, int64_t width, int64_t stride, int64_t offset = 0)
      : gpu_(gpu), rows_(rows), width_(width), stride_(stride), offset_(offset) {
    data_ = static_cast<T*>(gpu.allocate(offset + (rows - 1) * stride + width, sizeof(T)));
  }
  // Normal numbers.
  static Rows random(Gpu& gpu, int64_t rows, int64_t width, int64_t stride, int64_t offset, unsigned seed) {
    Rows made(gpu, rows, width, stride, offset);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < width; ++i) {
        const T value = narrowed<T>(normal(generator));
        gpu.set(made.data_ + offset + row * stride + i, &value, sizeof(value));
      }
    return made;
  }
  GpuRows rows() const { return {data(), stride_}; }
  T* data() const { return data_ + offset_; }
  // [rows, width]; refused if one was never written.
  std::vector<double> values() const {
    std::vector<double> all;
    for (int64_t row = 0; row < rows_; ++row)
      for (int64_t i = 0; i < width_; ++i) {
        T value;
        gpu_.get(data_ + offset_ + row * stride_ + i, &value, sizeof(value));
        all.push_back(widened(value));
      }
    return all;
  }

 private:
  Gpu& gpu_;
  int64_t rows_, width_, stride_, offset_;
  T* data_;
};

// The largest difference, by the largest entry of the expected numbers.
inline double worst(const std::vector<double>& got, const std::vector<double>& expected) {
  double difference = 0, largest = 1e-30;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::abs(got.at(i) - expected[i]));
    if (std::isnan(got[i])) return INFINITY;
    largest = std::max(largest, std::abs(expected[i]));
  }
  return got.size() == expected.size() ? difference / largest : INFINITY;
}

}  // namespace trireme::played
