// Attention that is cut short: of the keys that a query sees, the last few. It takes the memory of the whole
// attention, by the same kernel, and time that grows with the length, not with its square: for a run that is
// to show its memory (train/dry_run.h). What it computes is another model's.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "trireme/kernels/local_attention.h"

namespace trireme {

class NearestKeysAttention final : public LocalAttention {
 public:
  // `most_keys` of each query and call, 1 or more.
  NearestKeysAttention(std::unique_ptr<LocalAttention> whole, int64_t most_keys)
      : whole_(std::move(whole)), most_keys_(most_keys) {}

  std::string name() const override;
  bool by_reference() const override { return whole_->by_reference(); }
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionSpec& spec) override;
  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const AttentionSpec& spec) override;

 private:
  // Layers share a mask, and kernels plan a mask once: so is it cut once.
  AttentionSpec cut(const AttentionSpec& spec);

  std::unique_ptr<LocalAttention> whole_;
  int64_t most_keys_;
  std::vector<std::pair<std::weak_ptr<const VisibleKeys>, std::shared_ptr<const VisibleKeys>>> cut_masks_;
};

}  // namespace trireme
