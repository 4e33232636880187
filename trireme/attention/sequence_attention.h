// Attention of this rank's queries over every key of the sample, wherever it lies: what stands between
// Ulysses' two exchanges.
//
//   alone    R = 1: the rank holds the whole sequence of its heads, and the local kernel does all
//   ring     keys and values travel round the R ring ranks while each computes (ring_attention.h)
//   gather   all keys and values are gathered first (gathered_keys.h)
//
//   forward    q_BnHD, k_BnKD, v_BnKD                        -> o_BnHD, lse_BHn
//   backward   do_BnHD, q_BnHD, k_BnKD, v_BnKD, o, lse       -> dq_BnHD, dk_BnKD, dv_BnKD
//
// n tokens of this ring rank, H and K this rank's query and key/value heads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/base/enum_names.h"
#include "trireme/base/sample_layout.h"
#include "trireme/comm/group.h"
#include "trireme/kernels/local_attention.h"
#include "trireme/kernels/mask.h"

namespace trireme {

enum class RingMethod { ring, gather };
constexpr auto enum_names(RingMethod) {
  using enum RingMethod;
  return std::to_array<EnumName<RingMethod>>({{ring, "ring"}, {gather, "gather"}});
}

// What one layer's mask is for the queries of one ring rank. Computed once a step for all layers alike.
struct SequenceMask {
  SampleLayout layout;
  int ring_index = 0;  // of the queries
  // Of the keys of ring rank p; with RingMethod::gather, or one ring rank, a single entry: all keys.
  std::vector<std::shared_ptr<const VisibleKeys>> keys;
};

SequenceMask make_sequence_mask(const LayerMask& mask, const std::vector<Documents>& documents,
                                const SampleLayout& layout, int ring_index, RingMethod method);

struct SequenceSpec {
  ScoreForm scores;
  std::vector<int> kv_of_query;  // as in AttentionSpec
  const SequenceMask& mask;
  ResultDtype gradients = ResultDtype::of_input;  // of backward: fp32 where they are terms of a sum

  // Of the local kernel, over the keys of one ring rank.
  AttentionSpec of_keys(int ring_index, ResultDtype results) const {
    return {scores, mask.keys.at(static_cast<size_t>(ring_index)), kv_of_query, results};
  }
  // Over all keys, for a mask that has them in one. Throws InternalError for another.
  AttentionSpec of_all_keys(ResultDtype results) const;
};

class SequenceAttention {
 public:
  virtual ~SequenceAttention() = default;
  SequenceAttention& operator=(SequenceAttention&&) = delete;
  virtual std::string name() const = 0;
  // Both collective over the ring.
  virtual AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const SequenceSpec& spec) = 0;
  virtual AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionOutput& saved,
                                      const SequenceSpec& spec) = 0;
};

// `ring` of one rank: the local kernel alone. Neither is owned.
std::unique_ptr<SequenceAttention> make_sequence_attention(RingMethod method, Group& ring,
                                                           LocalAttention& local);

}  // namespace trireme
