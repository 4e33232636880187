// The interface of attention on one rank: some query rows, some key rows, this rank's heads. Explicit both
// ways, so that the layer runner decides what is kept and what travels:
//
//   forward    q_BShD, k_BTkD, v_BTkD                    -> o_BShD, lse_BhS
//   backward   do_BShD, q_BShD, k_BTkD, v_BTkD, o, lse   -> dq_BShD, dk_BTkD, dv_BTkD
//
// B batch, S query rows, T key rows (the whole sequence, or what ring attention holds at one time), h this
// rank's query heads, k its key/value heads, D head width. Query head i uses key/value head kv_of_query[i]:
// grouped-query attention without repeating keys. Which keys a query sees: mask.h. lse is the natural log of
// the sum of exp(score) of each query, fp32, or fp64 of fp64 inputs; a query that sees no key has o = 0 and
// lse = minus infinity. Backward may be given the o and lse of more keys than these: it then gives these
// keys' part of the gradients. Inputs may be strided views (last dim contiguous); outputs are contiguous.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/kernels/attention_kernel.h"
#include "trireme/kernels/long_documents.h"
#include "trireme/kernels/mask.h"

namespace trireme {

// Of o, dq, dk and dv: fp32 where they are parts of a sum. Kernels that sum in 16-bit types give those as
// fp32.
enum class ResultDtype { of_input, fp32 };

// What a kernel must know.
enum class Scores { plain, capped };

// Scores are scale * q.k, or with a cap: cap tanh(scale * q.k / cap) (Gemma 2).
struct ScoreForm {
  double scale = 1;  // above 0
  double cap = 0;    // 0: none
  Scores kind() const { return cap > 0 ? Scores::capped : Scores::plain; }
};

struct AttentionSpec {
  ScoreForm scores;
  std::shared_ptr<const VisibleKeys> keys;  // of S query rows and T key rows
  std::vector<int> kv_of_query;             // size h, values in [0, k), not decreasing
  ResultDtype results = ResultDtype::of_input;
};

struct AttentionOutput {
  at::Tensor o;    // [B, S, h, D], q's dtype or fp32
  at::Tensor lse;  // [B, h, S], fp32 or fp64
};

struct AttentionGradients {
  at::Tensor dq;  // [B, S, h, D], q's dtype or fp32
  at::Tensor dk;  // [B, T, k, D]
  at::Tensor dv;  // [B, T, k, D]
};

// Of one rank.
struct RankHeads {
  int64_t query = 0;
  int64_t largest_group = 1;  // query heads of a key/value head
  int64_t width = 0;
};

// No method is collective. h, k, S or T of zero give empty results, or zeros. A mask that the kernel does not
// know is a ConfigError that names one that does.
class LocalAttention {
 public:
  virtual ~LocalAttention() = default;
  LocalAttention& operator=(LocalAttention&&) = delete;
  virtual std::string name() const = 0;  // the kernel in use, for `trireme info` and the run's log
  // Whether it is the plain one, which is slow.
  virtual bool by_reference() const { return false; }
  // What becomes of packed documents, where their length decides; else empty. For the run's log.
  virtual std::string for_documents(const RankHeads& /*heads*/) const { return {}; }
  virtual AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionSpec& spec) = 0;
  virtual AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionOutput& saved,
                                      const AttentionSpec& spec) = 0;
};

// The kernel for a device, which is the current one. `automatic`: flash on the CPU; on CUDA in bf16 and on
// Hopper flash4, else cuDNN, and flash for the masks that these lack (of packed documents the short ones);
// memory-efficient attention in fp32 (tiles for what it lacks, windows), and for heads wider than kMostFlashWidth;
// tiles for capped scores; the reference in fp64 on both. A kernel that the device, the dtype or the scores do
// not have is a ConfigError that names what to use; nothing falls back in silence. `lengths`: of the samples
// that come (long_documents.h); `scores`: of the AttentionSpecs that come.
std::unique_ptr<LocalAttention> make_local_attention(AttentionKernel kernel, at::Device device,
                                                     at::ScalarType dtype,
                                                     SampleLengths lengths = SampleLengths::few,
                                                     Scores scores = Scores::plain);

}  // namespace trireme
