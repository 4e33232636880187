// Attention kernels on CUDA: FlashAttention-4's, which the build compiles, and libtorch's, each called by its
// own name, never through a dispatcher that may choose another.
//
//   kernel      dtypes       head width           calls
//   flash4      bf16         64, 128, 256         dense, full or causal; on Hopper
//   cudnn       fp16, bf16   8 n, 32 to 128       dense, full or causal and square, over all query rows or
//                                                 all key rows, or of long documents
//   cudnn_packed  fp16, bf16 16 n, 32 to 128      every band, dense or in segments: graphs of our own
//   flash       fp16, bf16   8 n, up to 256       every band, dense or in segments
//   efficient   fp32         4 n, up to 512       dense, full or causal; in 16 bits for 8 n above 256
//   tiles       all          any                  dense, every band; capped scores
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "trireme/kernels/backward_heads.h"
#include "trireme/kernels/cuda_calls.h"
#include "trireme/kernels/flash4_runner.h"
#include "trireme/kernels/graph_runner.h"
#include "trireme/kernels/key_block_sizes.h"
#include "trireme/kernels/score_tile_sizes.h"

namespace trireme {

// FlashAttention-2 counts the elements of its backward's fp32 dq in 32 bits; tests give smaller bounds.
std::unique_ptr<CallKernel> make_cuda_flash_kernel(
    int64_t most_dq_elements = std::numeric_limits<int32_t>::max(),
    int64_t backward_call_bytes = kBackwardCall_bytes);

std::unique_ptr<CallKernel> make_flash4_kernel(std::unique_ptr<Flash4Runner> runner,
                                               int64_t backward_call_bytes = kBackwardCall_bytes,
                                               int64_t least_pair_values = kLeastPairValues);

struct CudnnCalls {
  SampleLengths lengths = SampleLengths::few;         // of any: those that tokens_of_graph leaves whole
  int64_t least_pair_values = kLeastPairValues;       // of a document alone (least_tokens_alone)
  int64_t key_block_bytes = kKeyBlock_bytes;          // longer calls are cut forward (key_blocks.h)
  int64_t backward_call_bytes = kBackwardCall_bytes;  // of one that holds more, heads are cut
};
// cuDNN's fused attention. Throws ConfigError: an environment in which libtorch gives it another log-sum-exp.
std::unique_ptr<CallKernel> make_cudnn_kernel(const CudnnCalls& calls = {});
// cuDNN's graphs of segments. Each kind of call is first confirmed by FlashAttention on a small one: a
// ConfigError where they differ.
std::unique_ptr<CallKernel> make_cudnn_packed_kernel(std::unique_ptr<GraphRunner> runner);
// Memory-efficient attention (xFormers'), with products of three TF32 terms: nearly fp32's.
std::unique_ptr<CallKernel> make_cuda_efficient_kernel();
// The same in 16 bits, for heads wider than kMostFlashWidth.
std::unique_ptr<CallKernel> make_cuda_wide_heads_kernel();
// Products of matrices and kernels of our own between them, for what the others lack.
std::unique_ptr<CallKernel> make_cuda_tiles_kernel(int64_t most_tile_bytes = kTilesAtOnce_bytes);

}  // namespace trireme
