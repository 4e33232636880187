// The interface of attention on one rank: whole sequence, this rank's heads. Explicit both ways, so that the
// walk over layers decides what is kept and what travels:
//
//   forward    q_BShD, k_BSkD, v_BSkD                    -> o_BShD, lse_BhS
//   backward   do_BShD, q_BShD, k_BSkD, v_BSkD, o, lse   -> dq_BShD, dk_BSkD, dv_BSkD
//
// B batch, S the whole sequence, h this rank's query heads, k its key/value heads, D head width. Query head i
// uses key/value head kv_of_query[i]: grouped-query attention without repeating keys. lse is the natural log
// of the sum of exp(score) of each query, fp32. Inputs may be strided views (last dim contiguous); outputs
// are contiguous BShD.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace trireme {

struct AttentionSpec {
  double scale = 1;              // scores are scale * q.k
  int64_t window = 0;            // 0: every earlier token; W: query i sees key j when 0 <= i - j < W
  std::vector<int> kv_of_query;  // size h, values in [0, k), not decreasing
};

struct AttentionOutput {
  at::Tensor o;    // [B, S, h, D], q's dtype
  at::Tensor lse;  // [B, h, S], fp32
};

struct AttentionGradients {
  at::Tensor dq;  // [B, S, h, D], q's dtype
  at::Tensor dk;  // [B, S, k, D]
  at::Tensor dv;  // [B, S, k, D]
};

// Causal attention. No method is collective. h, k or S of zero give empty results.
class LocalAttention {
 public:
  virtual ~LocalAttention() = default;
  virtual std::string name() const = 0;  // the kernel in use, for `trireme info` and the run's log
  virtual AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionSpec& spec) = 0;
  virtual AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionOutput& saved,
                                      const AttentionSpec& spec) = 0;
};

enum class AttentionKernel { automatic, flash, cudnn, reference };

// The backend for a device. `automatic`: flash on the CPU; cuDNN on CUDA, flash where a window asks for it. A
// kernel that the device or dtype does not have is a ConfigError that names those it has; nothing falls back
// in silence.
std::unique_ptr<LocalAttention> make_local_attention(AttentionKernel kernel, at::Device device,
                                                     at::ScalarType dtype);

// "auto", "flash", "cudnn", "reference"; ConfigError otherwise.
AttentionKernel parse_attention_kernel(const std::string& text);

}  // namespace trireme
