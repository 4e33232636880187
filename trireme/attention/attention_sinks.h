// Attention sinks, one learned scalar s_h a query head (gpt-oss, arXiv 2508.10925): as one more key of score
// s_h, in every query's softmax, with a zero value.
//
//   forward    o, lse of the keys;  lse' = log(exp(lse) + exp(s_h));  o' = o exp(lse - lse')
//   backward   dq, dk, dv are the keys' own with o', lse' in place of o, lse
//              ds_h = - sum over samples and queries of exp(s_h - lse') rowsum(do o')
#pragma once

#include "trireme/attention/sequence_attention.h"

namespace trireme {

// Attention over the keys, which `keys` knows, and the sinks. For one call of either direction.
class AttentionWithSinks final : public SequenceAttention {
 public:
  // sinks_H [H], of the query heads that it will be given.
  AttentionWithSinks(std::unique_ptr<SequenceAttention> keys, at::Tensor sinks_H);
  std::string name() const override;
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const SequenceSpec& spec) override;
  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const SequenceSpec& spec) override;
  // After backward: [H], of its queries, in lse's dtype.
  const at::Tensor& d_sinks_H() const { return d_sinks_H_; }

 private:
  const std::unique_ptr<SequenceAttention> keys_;
  const at::Tensor sinks_H_;
  at::Tensor d_sinks_H_;
};

}  // namespace trireme
