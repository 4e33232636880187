// Who runs FlashAttention-4's kernels: on a Hopper GPU those that the build compiled (flash4_runner.cpp).
// Tests play one on the CPU.
#pragma once

#include <memory>
#include <string>

#include <ATen/ATen.h>

namespace trireme {

// Tensors of [B, rows, heads, D] in bf16, whose rows may lie apart, aligned to 16 bytes; lse [B, h, S] is
// contiguous. Causal: aligned at the last key.
struct Flash4Forward {
  at::Tensor q, k, v;
  at::Tensor o, lse;  // written
};

// Sums are of [B, heads, rows in whole tiles x D] in fp32 (flash4_sizes.h), dk_sum and dv_sum zero; with one
// query head a key/value head dk and dv are written without them.
struct Flash4Backward {
  at::Tensor d_o, q, k, v, o, lse;
  at::Tensor dq, dk, dv;  // written
  at::Tensor dq_sum, dk_sum, dv_sum;
  at::Tensor delta, lse_log2;  // [B, h, rows in whole tiles]
};

class Flash4Runner {
 public:
  virtual ~Flash4Runner() = default;
  Flash4Runner& operator=(Flash4Runner&&) = delete;
  // On the current stream. Throws InternalError: the kernel refused its arguments. An error of CUDA is thrown
  // as libtorch throws its own.
  virtual void forward(const Flash4Forward& tensors, double scale, bool causal) = 0;
  virtual void backward(const Flash4Backward& tensors, double scale, bool causal) = 0;
};

// Empty: the current device runs them. Else why not: a build without them, a GPU that is not a Hopper.
std::string flash4_lacks();
// Throws ConfigError: flash4_lacks().
std::unique_ptr<Flash4Runner> make_flash4_runner();

}  // namespace trireme
