#include "trireme/kernels/nearest_keys.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {

std::string NearestKeysAttention::name() const {
  return cat(whole_->name(), ", cut to the nearest ", most_keys_, " keys");
}

AttentionSpec NearestKeysAttention::cut(const AttentionSpec& spec) {
  std::erase_if(cut_masks_, [](const auto& known) { return known.first.expired(); });
  AttentionSpec nearest = spec;
  for (const auto& [whole, cut_mask] : cut_masks_)
    if (whole.lock() == spec.keys) {
      nearest.keys = cut_mask;
      return nearest;
    }
  auto keys = std::make_shared<VisibleKeys>(*spec.keys);
  for (KeyRanges& ranges : keys->samples)
    for (size_t row = 0; row < ranges.begin.size(); ++row)
      ranges.begin[row] = std::max(ranges.begin[row], ranges.end[row] - most_keys_);
  nearest.keys = keys;
  cut_masks_.emplace_back(spec.keys, std::move(keys));
  return nearest;
}

AttentionOutput NearestKeysAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                              const AttentionSpec& spec) {
  return whole_->forward(q, k, v, cut(spec));
}

AttentionGradients NearestKeysAttention::backward(const at::Tensor& d_o, const at::Tensor& q,
                                                  const at::Tensor& k, const at::Tensor& v,
                                                  const AttentionOutput& saved, const AttentionSpec& spec) {
  return whole_->backward(d_o, q, k, v, saved, cut(spec));
}

}  // namespace trireme
