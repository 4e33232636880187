// Tensors as launchers of GPU kernels get them: an address, a number format, elements from row to row. No
// torch.
#pragma once

#include <stdint.h>

#include "trireme/kernels/narrow_floats.h"

namespace trireme {

enum class GpuNumber { fp32, bf16, fp16 };

constexpr int64_t bytes_of(GpuNumber number) {
  return number == GpuNumber::fp32 ? 4 : 2;
}

// Calls with(a value of the format's type).
template <typename F>
void with_number(GpuNumber number, const F& with) {
  if (number == GpuNumber::fp32) with(float{});
  if (number == GpuNumber::bf16) with(Bf16{});
  if (number == GpuNumber::fp16) with(Fp16{});
}

struct GpuRows {
  void* data = nullptr;
  int64_t stride = 0;  // elements
};

// Larger devices are used as if they had so many.
constexpr int64_t kMostMultiprocessors = 192;

// Values that a thread works on at a time: one or two accesses of 16 bytes.
constexpr int kChunk = 8;

// Whether chunks of rows lie at multiples of 16 bytes.
inline bool aligned_chunks(const GpuRows& rows, GpuNumber number) {
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride * bytes_of(number) % 16 == 0;
}

}  // namespace trireme
