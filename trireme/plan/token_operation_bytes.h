// Bytes of device memory that a token-wise operation moves for each unit of its amount (WorkKind), counted
// from the ATen kernels of kernels/token_ops_aten.cpp, which work in fp32 whatever the dtype: what each
// kernel reads and writes, a block of rows at a time. On a GPU they are bound by memory: rate = bandwidth /
// bytes.
//
//   norm           32 = 6 widened, 4 squares, 8 x r, 8 x w, 6 rounded           (a value of x, bf16)
//   activation     30 = 6 widened, 8 silu, 10 x up, 6 rounded                    (a value of act)
//   cross_entropy  40 = 6 widened, 12 log-softmax (reads twice), 8 exp, 8 x scale, 6 rounded   (a logit)
//   embedding      11 = mean of 4 looked up and 18 added to fp32                 (a value of x)
//   optimizer      50 = 28 AdamW (reads four, writes three), 4 norm, 8 x clip, 4 zeroed, 6 rounded   (an
//   element)
#pragma once

#include <array>

#include "trireme/plan/hardware_profile.h"

namespace trireme {

struct TokenOperationBytes {
  WorkKind kind{};
  double of_2_byte_values = 0;
  double of_4_byte_values = 0;
};

inline constexpr std::array<TokenOperationBytes, 9> kTokenOperationBytes = {{
    {WorkKind::norm, 32, 36},
    {WorkKind::norm_backward, 96, 104},
    {WorkKind::rotation, 36, 40},
    {WorkKind::activation, 30, 36},
    {WorkKind::activation_backward, 126, 140},
    {WorkKind::cross_entropy, 40, 36},
    {WorkKind::embedding, 11, 10},
    {WorkKind::copy, 4, 8},
    {WorkKind::optimizer, 50, 44},
}};

}  // namespace trireme
