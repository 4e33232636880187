// Attention of one layer over all ranks that share a sample: what training, `trireme bench comm` and the
// tests run.
//
// Ulysses sequence parallelism (arXiv 2309.14509): each of P ranks holds s tokens and all heads. An
// all-to-all trades sequence for heads before attention, and another trades back after it.
//
//   forward    qkv_BsND --seq_to_heads--> q_BShD, k_BSkD, v_BSkD --attention--> o_BShD
//              --heads_to_seq--> o_BsHD
//   backward   do_BsHD --seq_to_heads--> do_BShD --attention--> dq, dk, dv --heads_to_seq--> dqkv_BsND
//
// S are the tokens of the group's ring rank: the whole sequence, unless ring attention stands between the
// exchanges (sequence_attention.h; the two together: USP, arXiv 2405.07719).
//
// N = H + 2K heads packed [queries | keys | values], so that q, k and v travel in one exchange. A rank
// computes a contiguous, possibly uneven share of the query heads and receives every key/value head that they
// use (head_shares.h). The gradients of a key/value head used by several ranks are summed at its owner, the
// token's rank. What is received lies token by token, so that q, k, v and do are views of the receive buffer,
// for any B and P. With one rank nothing is copied: the results are views of the input (dq, dk, dv alone are
// joined into one tensor, unless the caller takes them apart).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "trireme/attention/head_exchange.h"
#include "trireme/attention/head_shares.h"
#include "trireme/attention/sequence_attention.h"
#include "trireme/base/sequence_layout.h"
#include "trireme/comm/group.h"

namespace trireme {

struct UlyssesPartition {
  SequenceLayout layout;  // S tokens over P = group size ranks
  HeadShares heads;       // H query and K key/value heads over P ranks
};

// qkv [B, s, H + 2K, D] -> this rank's heads of the whole sequence, [B, S, h + 2k, D]. One all-to-all.
// Collective.
at::Tensor seq_to_heads_qkv(Group& group, const UlyssesPartition& partition, const at::Tensor& qkv_BsND);
// Of q, k and v apart. Collective.
HeadsQkv seq_to_heads_parts(Group& group, const UlyssesPartition& partition, const HeadsQkv& parts_BsHD);
// The adjoint: gradients of q, k, v of this rank's heads -> [B, s, H + 2K, D]; a key/value head's gradients
// from all its users are summed in fp32 in rank order. One all-to-all. Collective.
at::Tensor heads_to_seq_qkv(Group& group, const UlyssesPartition& partition,
                            const AttentionGradients& gradients);
// As three tensors. Collective.
AttentionGradients heads_to_seq_parts(Group& group, const UlyssesPartition& partition,
                                      const AttentionGradients& gradients);

// o [B, S, h, D] -> [B, s, H, D], and its adjoint. One all-to-all each. Collective.
at::Tensor heads_to_seq(Group& group, const UlyssesPartition& partition, const at::Tensor& o_BShD);
at::Tensor seq_to_heads(Group& group, const UlyssesPartition& partition, const at::Tensor& do_BsHD);
// do and o packed in one exchange, for a backward that kept o_BsHD rather than o_BShD: {do_BShD, o_BShD}.
// Collective.
std::pair<at::Tensor, at::Tensor> seq_to_heads_pair(Group& group, const UlyssesPartition& partition,
                                                    const at::Tensor& do_BsHD, const at::Tensor& o_BsHD);

struct ShardedOutput {
  at::Tensor o_BsHD;
  at::Tensor lse_BhS;  // of this rank's heads
  at::Tensor o_BShD;   // of this rank's heads; undefined with head chunks, and on one Ulysses rank, where it
                       // is o_BsHD
};

// The caller chooses what backward finds and what is made again: a tensor that is given by value is freed as
// soon as it was used, unless the caller kept it too. Ulysses' exchanges in each method are beside those of
// the ring.
class ShardedAttention {
 public:
  ShardedAttention(Group& ulysses, std::unique_ptr<SequenceAttention> sequence, HeadShares heads,
                   ScoreForm scores)
      : ulysses_(ulysses), sequence_(std::move(sequence)), heads_(std::move(heads)), scores_(scores) {}
  virtual ~ShardedAttention() = default;
  ShardedAttention& operator=(ShardedAttention&&) = delete;

  std::string name() const { return sequence_->name(); }

  // qkv_BsND -> q, k and v as forward and backward take them: by heads [B, S, h + 2k, D], in one all-to-all;
  // with head chunks as they are. Collective.
  virtual at::Tensor exchange_qkv(at::Tensor qkv_BsND, const SequenceMask& mask) = 0;
  // One all-to-all. Collective.
  virtual ShardedOutput forward(at::Tensor qkv, const SequenceMask& mask) = 0;
  // -> dqkv_BsND. `output` may lack o_BShD: o then travels with do. Two all-to-alls. Collective.
  virtual at::Tensor backward(at::Tensor do_BsHD, at::Tensor qkv, ShardedOutput output,
                              const SequenceMask& mask) = 0;

 protected:
  Group& ulysses_;
  const std::unique_ptr<SequenceAttention> sequence_;
  const HeadShares heads_;
  const ScoreForm scores_;
};

// Plain Ulysses; for callers that have q, k and v apart too, and would have to join them.
class UlyssesAttention final : public ShardedAttention {
 public:
  using ShardedAttention::ShardedAttention;

  at::Tensor exchange_qkv(at::Tensor qkv_BsND, const SequenceMask& mask) override;
  ShardedOutput forward(at::Tensor qkv, const SequenceMask& mask) override;
  at::Tensor backward(at::Tensor do_BsHD, at::Tensor qkv, ShardedOutput output,
                      const SequenceMask& mask) override;

  // The same three. Collective.
  HeadsQkv exchange_parts(const HeadsQkv& parts_BsHD, const SequenceMask& mask);
  ShardedOutput forward_parts(HeadsQkv heads, const SequenceMask& mask);
  AttentionGradients backward_parts(at::Tensor do_BsHD, HeadsQkv heads, ShardedOutput output,
                                    const SequenceMask& mask);

 private:
  AttentionGradients gradients_by_heads(at::Tensor do_BsHD, const HeadsQkv& heads, ShardedOutput output,
                                        const SequenceMask& mask);
  UlyssesPartition partition(const SequenceMask& mask) const;
  SequenceSpec spec(const SequenceMask& mask) const;
  HeadsQkv split(const at::Tensor& qkv) const;
};

// `sequence` joins the ring ranks that `ulysses` is one of. `head_chunks` of 1 is plain Ulysses, more are
// head_chunks.h. Not collective. `ulysses` and what `sequence` refers to outlive the result, whose calls
// throw what collectives throw.
std::unique_ptr<ShardedAttention> make_sharded_attention(Group& ulysses,
                                                         std::unique_ptr<SequenceAttention> sequence,
                                                         HeadShares heads, ScoreForm scores, int head_chunks);

}  // namespace trireme
