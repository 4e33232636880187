// Key/value gather: every ring rank gathers all keys and values of its heads, then computes its queries (as
// Llama 3 does, arXiv 2407.21783, section 3.3.2). One exchange instead of R - 1, and no merge, for the memory
// of all keys.
//
//   forward    all_gather of k, v                       -> attention of n queries over S keys
//   backward   all_gather of k, v again; dq stays, reduce_scatter_sum of dk, dv in fp32
//
// Elements that one rank sends, even shares: forward 2 K D (S / R) (R - 1); backward the same, and as many in
// fp32.
#pragma once

#include "trireme/attention/sequence_attention.h"

namespace trireme {

class GatheredKeys final : public SequenceAttention {
 public:
  GatheredKeys(Group& ring, LocalAttention& local) : ring_(ring), local_(local) {}
  std::string name() const override;
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const SequenceSpec& spec) override;
  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const SequenceSpec& spec) override;

 private:
  Group& ring_;
  LocalAttention& local_;
};

}  // namespace trireme
