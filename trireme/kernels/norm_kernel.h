// RMS norm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450) on a GPU, both ways: what norm_kernel.cu
// launches on `stream`, a cudaStream_t of the current device.
//
//   x [T, M] -> y [T, M]                              one read, one write
//   dy, x [T, M] -> dx [T, M]; partial [blocks, M]    sums over the rows of a block, then added to dweight
//   [M]
#pragma once

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
  float eps = 0;
  int multiprocessors = 0;  // of the device
};

void launch_norm(const NormKernel& norm, const GpuRows& y, void* stream);

// Rows of partial sums that the backward writes.
int64_t norm_partial_rows(const NormKernel& norm);

// dx is added to what `dx` holds by an RMS norm, and written by a LayerNorm. partial: fp32
// [norm_partial_rows, M] of scratch memory, [.., 2M] of a LayerNorm. Added to dweight and dbias, fp32 [M], in
// an order that the sizes and the number of multiprocessors determine.
void launch_norm_backward(const NormKernel& norm, const GpuRows& dy, const GpuRows& dx, float* partial,
                          float* dweight, float* dbias, void* stream);

}  // namespace trireme
