#include "trireme/attention/sequence_attention.h"

#include "trireme/attention/gathered_keys.h"
#include "trireme/attention/ring_attention.h"
#include "trireme/base/error.h"

namespace trireme {

namespace {

class WholeSequence final : public SequenceAttention {
 public:
  explicit WholeSequence(LocalAttention& local) : local_(local) {}
  std::string name() const override { return local_.name(); }
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const SequenceSpec& spec) override {
    return local_.forward(q, k, v, spec.of_all_keys(ResultDtype::of_input));
  }
  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const SequenceSpec& spec) override {
    return local_.backward(d_o, q, k, v, saved, spec.of_all_keys(spec.gradients));
  }

 private:
  LocalAttention& local_;
};

}  // namespace

SequenceMask make_sequence_mask(const LayerMask& mask, const std::vector<Documents>& documents,
                                const SampleLayout& layout, int ring_index, RingMethod method) {
  const TokenSpans queries = layout.ring_spans(ring_index);
  SequenceMask result{layout, ring_index, {}};
  if (layout.ring == 1 || method == RingMethod::gather) {
    const TokenSpans whole = SampleLayout{layout.tokens}.ring_spans(0);
    result.keys.push_back(visible_keys(mask, documents, layout.tokens, queries, whole));
    return result;
  }
  result.keys.reserve(static_cast<size_t>(layout.ring));
  for (int owner = 0; owner < layout.ring; ++owner)
    result.keys.push_back(visible_keys(mask, documents, layout.tokens, queries, layout.ring_spans(owner)));
  return result;
}

AttentionSpec SequenceSpec::of_all_keys(ResultDtype results) const {
  TRIREME_ASSERT(mask.keys.size() == 1, "a mask of ", mask.keys.size(),
                 " ring ranks' keys, expected one of all keys");
  return of_keys(0, results);
}

std::unique_ptr<SequenceAttention> make_sequence_attention(RingMethod method, Group& ring,
                                                           LocalAttention& local) {
  if (ring.size() == 1) return std::make_unique<WholeSequence>(local);
  if (method == RingMethod::gather) return std::make_unique<GatheredKeys>(ring, local);
  return std::make_unique<RingAttention>(ring, local);
}

}  // namespace trireme
