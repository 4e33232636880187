// Rotary embedding (arXiv 2104.09864) of packed heads on a GPU with an RMS norm of each query and key head
// before it (Qwen3, Gemma 3), both ways: what rotary_kernel.cu launches on `stream`, a cudaStream_t of the
// current device.
//
//   from [T, N, D] -> to [T, N, D], possibly the same: one read, one write; in place without norms, of the
//   pairs that turn alone
//   with norms, backwards: dq_norm, dk_norm [D] beside it, through partial [blocks, 2, D]
#pragma once

#include "trireme/kernels/gpu_rows.h"

namespace trireme {

struct RotaryKernel {
  GpuNumber number = GpuNumber::fp32;                     // of from, to, before
  int64_t tokens = 0;                                     // T
  int64_t heads = 0, query_heads = 0, rotated_heads = 0;  // N; heads [rotated_heads, N) are copied
  int64_t head_dim = 0;                                   // D
  int64_t turning_pairs = 0;                              // r: values i and i + r for i < r
  GpuRows from, to;                                       // heads of a token are contiguous
  GpuRows before;                                   // of the backward with norms: what went into the forward
  const float *cos = nullptr, *sin = nullptr;       // [table_rows, r]
  int64_t table_rows = 1, first_row = 0;            // token t has row (first_row + t) % table_rows
  const void *q_norm = nullptr, *k_norm = nullptr;  // [D], both or none
  GpuNumber norm_number = GpuNumber::fp32;
  bool norms_add_one = false;  // NormKernel::adds_one
  float eps = 0;
  int multiprocessors = 0;  // of the device
};

// A head's pairs are spread over the lanes of a warp, those that turn and those that stay over lanes of their
// own: more chunks of them are not known. T N and table_rows + T stay below 2^32.
constexpr int64_t kMostRotaryChunks = 32;
constexpr int64_t rotary_chunks(int64_t pairs) {
  return (pairs + kChunk - 1) / kChunk;
}
constexpr bool knows_rotary_head(int64_t head_dim, int64_t turning_pairs) {
  return rotary_chunks(turning_pairs) + rotary_chunks(head_dim / 2 - turning_pairs) <= kMostRotaryChunks;
}

void launch_rotary(const RotaryKernel& rotary, void* stream);

// Rows of partial sums that the backward with norms writes, and how many at most on any device.
int64_t rotary_partial_rows(const RotaryKernel& rotary);
constexpr int64_t kRotaryNormBlocks = 2;  // of a multiprocessor, by the registers of their threads
constexpr int64_t kMostRotaryPartialRows = kRotaryNormBlocks * kMostMultiprocessors;

// from: gradient of the rotated heads, to: of the unrotated ones. partial: fp32 [rotary_partial_rows, 2, D]
// of scratch memory. Added to dq_norm and dk_norm, fp32 [D]. Without norms those three may be null.
void launch_rotary_backward(const RotaryKernel& rotary, float* partial, float* dq_norm, float* dk_norm,
                            void* stream);

}  // namespace trireme
