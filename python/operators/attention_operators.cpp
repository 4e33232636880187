// Attention of shards as torch operators, over the caller's own torch.distributed groups: what
// trireme.ulysses_attention runs (python/trireme/attention.py, which checks the arguments and knows
// autograd).
//
//   ulysses_forward    q_BsHD, k_BsKD, v_BsKD, sinks_H   -> o_BsHD, lse_BhS of this rank's heads
//   ulysses_backward   do, q, k, v, sinks, o, lse        -> dq_BsHD, dk_BsKD, dv_BsKD; d_sinks_H, this rank's
//                                                           term of the sum over ranks
//   token_spans        which tokens of a sample lie on a rank, as begin, end, begin, end, ...
//
// A group is known by the name under which torch.distributed registered it; "" is this rank alone. The
// backend of the tensors' device carries the exchanges. From one call to the next lives what is prepared for
// a mask (prepared_mask.h).
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "trireme/attention/attention_sinks.h"
#include "trireme/attention/ulysses.h"
#include "trireme/base/documents.h"
#include "trireme/base/sample_layout.h"
#include "trireme/comm/group.h"

#include "python/operators/given_documents.h"
#include "python/operators/group_members.h"
#include "python/operators/operator_call.h"
#include "python/operators/prepared_mask.h"

namespace trireme {
namespace {

// What both directions need of the arguments beside q, k and v.
struct PreparedAttention {
  PreparedAttention(const at::Tensor& q, int64_t kv_heads, const std::optional<at::Tensor>& sinks_H,
                    const std::string& group, int64_t ring, at::IntArrayRef lengths,
                    const std::vector<at::Tensor>& cu_seqlens, int64_t window, bool causal,
                    const ScoreForm& scores)
      : groups(sequence_groups(group, ring, q.device())),
        heads(share_heads(q.size(2), kv_heads, groups.ulysses.size())),
        borrowed({q.device(),
                  stream_of(q.device()),
                  q.scalar_type(),
                  layout_of(groups, lengths),
                  groups.ring.rank(),
                  {.causality = causal ? Causality::causal : Causality::full, .window = window},
                  given_documents(cu_seqlens),
                  scores.kind()}),
        mask(borrowed.mask()),
        attention(groups.ulysses, make_sequence(sinks_H), heads, scores) {}

  // Of backward: [H], zero at the heads of other ranks.
  at::Tensor d_sinks(const at::Tensor& sinks_H) const {
    at::Tensor all = at::zeros_like(sinks_H);
    this_ranks_heads(all).copy_(sinks->d_sinks_H());
    return all;
  }

  SequenceGroups groups;
  HeadShares heads;
  BorrowedMask borrowed;
  const SequenceMask& mask;
  AttentionWithSinks* sinks = nullptr;  // `attention` owns it; null without sinks
  UlyssesAttention attention;

 private:
  // [H] -> [h].
  at::Tensor this_ranks_heads(const at::Tensor& of_all_heads) const {
    const HeadRange& share = heads.query[groups.ulysses.rank()];
    return of_all_heads.narrow(0, share.begin, share.size());
  }

  std::unique_ptr<SequenceAttention> make_sequence(const std::optional<at::Tensor>& sinks_H) {
    auto keys = make_sequence_attention(RingMethod::ring, groups.ring, borrowed.local());
    if (!sinks_H) return keys;
    auto with_sinks = std::make_unique<AttentionWithSinks>(std::move(keys), this_ranks_heads(*sinks_H));
    sinks = with_sinks.get();
    return with_sinks;
  }

  static SampleLayout layout_of(const SequenceGroups& groups, at::IntArrayRef lengths) {
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    SampleLayout layout{tokens, groups.ulysses.size(), groups.ring.size()};
    if (groups.ring.size() == 1) layout.given = lengths.vec();
    return layout;
  }
};

// ATen's operators record no gradients, and fp32 products (attention by tiles) are not rounded by autocast.
struct OperatorsAsTheyAre {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// Token by token, as Transformers has them after its rotation, and kernels and exchanges read them: no copy then.
HeadsQkv by_token(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return {q.contiguous(), k.contiguous(), v.contiguous()};
}

std::tuple<at::Tensor, at::Tensor> ulysses_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& sinks,
    const std::string& group, int64_t ring, at::IntArrayRef lengths,
    const std::vector<at::Tensor>& cu_seqlens, int64_t window, bool causal, double scale, double softcap) {
  const OperatorsAsTheyAre as_they_are;
  return call_operator(q, [&] {
    PreparedAttention prepared(q, k.size(2), sinks, group, ring, lengths, cu_seqlens, window, causal,
                               {scale, softcap});
    HeadsQkv heads = prepared.attention.exchange_parts(by_token(q, k, v), prepared.mask);
    ShardedOutput output = prepared.attention.forward_parts(std::move(heads), prepared.mask);
    return std::make_tuple(output.o_BsHD, output.lse_BhS);
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> ulysses_backward(
    const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& sinks, const at::Tensor& o, const at::Tensor& lse,
    const std::string& group, int64_t ring, at::IntArrayRef lengths,
    const std::vector<at::Tensor>& cu_seqlens, int64_t window, bool causal, double scale, double softcap) {
  const OperatorsAsTheyAre as_they_are;
  return call_operator(q, [&] {
    PreparedAttention prepared(q, k.size(2), sinks, group, ring, lengths, cu_seqlens, window, causal,
                               {scale, softcap});
    HeadsQkv heads = prepared.attention.exchange_parts(by_token(q, k, v), prepared.mask);
    ShardedOutput output{o, lse, {}};
    if (prepared.groups.ulysses.size() == 1) output = {{}, lse, o};
    const AttentionGradients gradients = prepared.attention.backward_parts(d_o.contiguous(), std::move(heads),
                                                                           std::move(output), prepared.mask);
    return std::make_tuple(gradients.dq, gradients.dk, gradients.dv,
                           sinks ? prepared.d_sinks(*sinks) : at::empty({0}, lse.options()));
  });
}

std::vector<int64_t> token_spans(int64_t tokens, int64_t ulysses, int64_t ring, int64_t rank) {
  const SampleLayout layout{tokens, static_cast<int>(ulysses), static_cast<int>(ring)};
  std::vector<int64_t> borders;
  for (const TokenSpan& span : layout.spans(static_cast<int>(rank))) {
    borders.push_back(span.begin);
    borders.push_back(span.end);
  }
  return borders;
}

// The words are trireme.ulysses_attention's.
constexpr auto kForward =
    "ulysses_forward(Tensor q, Tensor k, Tensor v, Tensor? sinks, str group, int ring, int[] lengths, "
    "Tensor[] cu_seqlens, int window, bool causal, float scale, float softcap) -> (Tensor, Tensor)";
constexpr auto kBackward =
    "ulysses_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor o, Tensor lse, "
    "str group, int ring, int[] lengths, Tensor[] cu_seqlens, int window, bool causal, float scale, "
    "float softcap) -> (Tensor, Tensor, Tensor, Tensor)";

}  // namespace

TORCH_LIBRARY(trireme, library) {
  library.def(kForward);
  library.def(kBackward);
  library.def("token_spans(int tokens, int ulysses, int ring, int rank) -> int[]", token_spans);
}

TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("ulysses_forward", ulysses_forward);
  library.impl("ulysses_backward", ulysses_backward);
}

TORCH_LIBRARY_IMPL(trireme, CUDA, library) {
  library.impl("ulysses_forward", ulysses_forward);
  library.impl("ulysses_backward", ulysses_backward);
}

}  // namespace trireme
