// The plain kernel: the formulas of attention as ATen operators, tiled over query rows so that S x S scores
// never exist whole. Any device and floating dtype; computes in fp32 (fp64 for fp64). For checks, and where
// no other fits.
#pragma once

#include "trireme/kernels/local_attention.h"

namespace trireme {

class ReferenceAttention final : public LocalAttention {
 public:
  explicit ReferenceAttention(std::string reason = {}) : reason_(std::move(reason)) {}
  std::string name() const override;
  bool by_reference() const override { return true; }
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionSpec& spec) override;
  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const AttentionSpec& spec) override;

 private:
  std::string reason_;  // why `automatic` chose it, for name()
};

}  // namespace trireme
