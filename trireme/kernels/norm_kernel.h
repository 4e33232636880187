// RMS norm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450) on a GPU, both ways: what norm_kernel.cu
// launches on `stream`, a cudaStream_t of the current device.
//
//   x [T, M] -> y [T, M]                              one read, one write
//   dy, x [T, M] -> dx [T, M]; partial [blocks, M]    sums over the rows of a block, then added to dweight
//   [M]
#pragma once

#include <algorithm>

#include "trireme/kernels/gpu_rows.h"

namespace trireme {

enum class NormKind { rms, layer };

struct NormKernel {
  NormKind kind = NormKind::rms;
  GpuNumber number = GpuNumber::fp32;  // of x, y, dy, dx
  int64_t rows = 0, width = 0;
  GpuRows x;
  const void* weight = nullptr;  // [M]
  const void* bias = nullptr;    // [M], of a LayerNorm
  GpuNumber weight_number = GpuNumber::fp32;
  bool adds_one = false;  // to the weight, in fp32 (Gemma)
  float eps = 0;
  int multiprocessors = 0;  // of the device
};

// Rows of up to so many values are held in registers, in one chunk a thread, or two; wider ones are read
// again.
constexpr int64_t kNarrowNorm = 2048, kUsualNorm = 8192;
constexpr int kWideNormThreads = 512;

// Threads of a block, which takes rows one after the other.
constexpr int64_t norm_threads(int64_t width) {
  if (width > kUsualNorm) return kWideNormThreads;
  const int64_t of_warp = 32 * kChunk * (width <= kNarrowNorm ? 1 : 2);
  return (width + of_warp - 1) / of_warp * 32;
}

// Blocks of the backward, each of which writes a row of partial sums: as many as a device holds at once, by
// the registers of their threads. kMostMultiprocessors bounds them on any device, for the memory forecast.
constexpr int64_t norm_backward_blocks(int64_t rows, int64_t width,
                                       int64_t multiprocessors = kMostMultiprocessors) {
  const int64_t resident = (width <= kNarrowNorm ? 768 : 512) / norm_threads(width);
  return std::min(rows, resident * std::min(multiprocessors, kMostMultiprocessors));
}

void launch_norm(const NormKernel& norm, const GpuRows& y, void* stream);

// dx is added to what `dx` holds by an RMS norm, and written by a LayerNorm. partial: fp32
// [norm_backward_blocks, M] of scratch memory, [.., 2M] of a LayerNorm. Added to dweight and dbias, fp32 [M],
// in an order that the sizes and the number of multiprocessors determine.
void launch_norm_backward(const NormKernel& norm, const GpuRows& dy, const GpuRows& dx, float* partial,
                          float* dweight, float* dbias, void* stream);

}  // namespace trireme
