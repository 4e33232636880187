// One decoder layer on this rank's slice: the token-wise halves in tiles, attention between them through
// Ulysses' exchanges.
//
//   forward   x_BsM -> attention_input (tiles) -> qkv_BsND -> all-to-all -> local attention -> all-to-all ->
//   o_BsHD
//             -> attention_output (tiles) -> y_BsM
//   backward  the same way back, with what was not kept made again
//
// What is kept (Saved, in the slots of recompute_plan.h):
//                            none                                     keep_attention     full
//                            x, q, k, v, o_BShD, lse, o_BsHD, x1,     x, o_BsHD, lse     x
//                            what the MLP keeps
// exchanges in backward:     2                                        3                  4
//
// The exchanges are as many where x is kept every few layers alone: those of a second forward count as
// backward's, which then does without them. With head chunks (attention/head_chunks.h) q, k and v are never kept by
// heads: kQ is then the packed qkv_BsND, and none has three exchanges too. The ring's are beside these.
#pragma once

#include <ATen/ATen.h>

#include "trireme/attention/ulysses.h"
#include "trireme/comm/group.h"
#include "trireme/forecast/recompute_plan.h"
#include "trireme/memory/activation_store.h"
#include "trireme/model/layer_halves.h"

namespace trireme {

// What all layers of one forward share.
struct SequenceContext {
  int64_t batch = 1;         // B
  int64_t shard_tokens = 0;  // s
  SampleLayout layout;       // S over ulysses x ring
  UlyssesShape shape;        // of this ring place
  // Of each layer; layers with the same mask share one.
  std::vector<std::shared_ptr<const SequenceMask>> masks;
  at::Tensor positions;                 // [B * s] int64: each token's position in its document
  RotaryTable rotary;                   // of this rank's positions
  at::ScalarType storage = at::kFloat;  // dtype of what lies between tiles
};

class LayerRunner {
 public:
  LayerRunner(const ModelConfig& config, const ShardedAttention& over, const RecomputePlan& plan,
              int64_t tile_tokens)
      : config_(config), over_(over), plan_(plan), tile_tokens_(tile_tokens) {}

  const RecomputePlan& plan() const { return plan_; }

  // x [B * s, M] -> y [B * s, M]. With `saved`, fills the plan's slots of it for backward (x is kept, not
  // copied). Collective.
  at::Tensor forward(int64_t layer, const LayerWeights& weights, const SequenceContext& context,
                     const at::Tensor& x, Saved* saved);
  // The same once more, from kX of `saved`, whose kO and kLse stand in for attention where the first forward
  // kept them; fills the slots of the plan's second forward. Collective where kO is not there.
  at::Tensor forward_again(int64_t layer, const LayerWeights& weights, const SequenceContext& context,
                           Saved& saved);
  // dy [B * s, M] -> dx [B * s, M]; may write over dy. Adds to the gradients. Makes what `saved` lacks beside
  // kX. Collective.
  at::Tensor backward(int64_t layer, const LayerWeights& weights, LayerWeights& gradients,
                      const SequenceContext& context, Saved saved, at::Tensor dy);

 private:
  // Uses kO and kLse of `saved` when they are there; fills the slots `keep`.
  at::Tensor forward_keeping(SavedSlots keep, int64_t layer, const LayerWeights& weights,
                             const SequenceContext& context, const at::Tensor& x, Saved& saved);
  SequenceSpec spec(int64_t layer, const SequenceContext& context) const;
  LayerTensors tensors(const LayerWeights& weights, const SequenceContext& context) const;
  // x -> qkv [B, s, N, D]
  at::Tensor project(const LayerTensors& layer, const SequenceContext& context, const at::Tensor& x);
  // Attention of forward: o [B * s, H D]; fills the slots `keep`.
  at::Tensor attend(SavedSlots keep, const LayerTensors& layer, const SequenceSpec& spec,
                    const SequenceContext& context, const at::Tensor& x, Saved& saved);
  // What attention's backward reads, kept or made again.
  struct Attended {
    HeadsQkv heads;            // without head chunks
    at::Tensor qkv;            // [B, s, N, D], with head chunks
    AttentionOutput by_heads;  // o may be undefined: then it is exchanged with do
    at::Tensor o;              // [B * s, H D]
  };
  Attended attended(const LayerTensors& layer, const SequenceSpec& spec, const SequenceContext& context,
                    const at::Tensor& x, Saved saved);
  // do [B * s, H D] -> dqkv [B * s, N, D]
  at::Tensor attend_backward(const SequenceSpec& spec, const SequenceContext& context, Attended attended,
                             at::Tensor d_o);
  bool chunked() const { return over_.head_chunks > 1; }
  at::Tensor by_samples(const SequenceContext& context, const at::Tensor& flat) const {
    return flat.view({context.batch, context.shard_tokens, config_.num_attention_heads, config_.head_dim});
  }
  // o of this rank's heads [B, S, h, D] -> [B * s, H D]
  at::Tensor by_tokens(const SequenceContext& context, const at::Tensor& o_BShD);
  // Calls body(begin, count) for each tile of tokens.
  template <typename Body>
  void in_tiles(int64_t tokens, const Body& body) const;

  const ModelConfig& config_;
  ShardedAttention over_;
  RecomputePlan plan_;
  int64_t tile_tokens_;
};

}  // namespace trireme
