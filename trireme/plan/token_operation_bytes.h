// Bytes of device memory that a token-wise operation moves for each unit of its amount (WorkKind): what its
// kernel has to read and write, each value once (kernels/token_ops_gpu.h, shard/adamw_kernel.h; tests on a
// played GPU count them), and ATen's for the embedding. They are bound by memory: rate = bandwidth / bytes.
//
//   norm, rotation        4 = a value read, one written                         (a value of x, bf16)
//   norm_backward         8 = dy, x and dx read, dx written                     (a value of x)
//   activation            6 = gate and up read, act written                     (a value of act)
//   activation_backward  12 = d(act), gate and up read; act and their gradients written
//   cross_entropy         4 = read, its gradient written; the second reading is of the caches   (a logit)
//   embedding            11 = mean of 4 looked up and 18 added to fp32          (a value of x)
//   optimizer            32 = 28 AdamW (reads four, writes three; of split masters both halves), 4 norm
//                        (an element of bf16 values beside fp32 moments, on one device)
#pragma once

#include "trireme/plan/hardware_profile.h"

namespace trireme {

struct TokenOperationBytes {
  WorkKind kind{};
  double of_2_byte_values = 0;
  double of_4_byte_values = 0;
};

inline constexpr TokenOperationBytes kTokenOperationBytes[] = {
    {WorkKind::norm, 4, 8},
    {WorkKind::norm_backward, 8, 16},
    {WorkKind::rotation, 4, 8},
    {WorkKind::activation, 6, 12},
    {WorkKind::activation_backward, 12, 24},
    {WorkKind::cross_entropy, 4, 8},
    {WorkKind::embedding, 11, 10},
    {WorkKind::copy, 4, 8},
    {WorkKind::optimizer, 32, 32},
};

}  // namespace trireme
