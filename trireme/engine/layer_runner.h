// One decoder layer on this rank's slice: the token-wise parts in tiles, attention between them through
// Ulysses' exchanges.
//
//   forward   x_BsM -> before attention (tiles) -> qkv_BsND -> all-to-all -> local attention -> all-to-all
//             -> o_BsHD -> after attention (tiles) -> y_BsM
//   backward  the same way back, with what was not kept made again
//
// What is kept (Saved, in the slots of recompute_plan.h):
//                            none                                     keep_attention     full
//                            x, q, k, v, o_BShD, lse, o_BsHD, x1,     x, o_BsHD, lse     x
//                            what the MLP keeps
// exchanges in backward:     2                                        3                  4
//
// With keep_attention q, k and v, or x1 and what the MLP keeps, may be kept beside it; the former save the
// third exchange. Where x is kept every few layers alone, full exchanges q, k and v of a layer that runs
// again once more (5). With head chunks (attention/head_chunks.h) q, k and v are kept by tokens, and none
// has three exchanges too. The ring's are beside these.
#pragma once

#include <memory>

#include <ATen/ATen.h>

#include "trireme/attention/ulysses.h"
#include "trireme/forecast/recompute_plan.h"
#include "trireme/memory/activation_store.h"
#include "trireme/model/layer.h"
#include "trireme/model/model_family.h"

namespace trireme {

// What all layers of one forward share.
struct SequenceContext {
  int64_t batch = 1;         // B
  int64_t shard_tokens = 0;  // s
  // Of each layer; layers with the same mask share one.
  std::vector<std::shared_ptr<const SequenceMask>> masks;
  at::Tensor positions;             // [B * s] int64: each token's position in its document
  std::vector<RotaryTable> rotary;  // of this rank's positions, of each layer; layers share them as masks
};

class LayerRunner {
 public:
  // `full_attention` is of layers with heads of their own (ModelConfig::full_heads); null: none has.
  LayerRunner(const ModelConfig& config, ShardedAttention& attention, ShardedAttention* full_attention,
              const RecomputePlan& plan, int64_t tile_tokens)
      : config_(config),
        layer_(config.family->layer(config)),
        attention_(attention),
        full_attention_(full_attention),
        plan_(plan),
        tile_tokens_(tile_tokens) {}

  const RecomputePlan& plan() const { return plan_; }

  // x [B * s, M] -> y [B * s, M]. With `saved`, fills the plan's slots of it for backward (x is kept, not
  // copied). Collective.
  at::Tensor forward(int64_t layer, const UnitWeights& weights, const SequenceContext& context,
                     const at::Tensor& x, Saved* saved);
  // The same once more, from kX of `saved`, whose kO and kLse stand in for attention where the first forward
  // kept them; fills the slots of the plan's second forward. Collective where kO is not there.
  at::Tensor forward_again(int64_t layer, const UnitWeights& weights, const SequenceContext& context,
                           Saved& saved);
  // dy [B * s, M] -> dx [B * s, M]; may write over dy. Adds to the gradients. Makes what `saved` lacks beside
  // kX. Collective.
  at::Tensor backward(int64_t layer, const UnitWeights& weights, UnitGradients& gradients,
                      const SequenceContext& context, Saved saved, at::Tensor dy);

 private:
  // Uses kO and kLse of `saved` when they are there; fills the slots `keep`.
  at::Tensor forward_keeping(SavedSlots keep, int64_t layer, const UnitWeights& weights,
                             const SequenceContext& context, const at::Tensor& x, Saved& saved);
  // x -> qkv [B, s, N, D]
  at::Tensor project(const LayerTensors& layer, const SequenceContext& context, const at::Tensor& x);
  // Attention of forward: o [B, s, H, D]; fills the slots `keep`.
  at::Tensor attend(SavedSlots keep, const LayerTensors& layer, ShardedAttention& attention,
                    const SequenceMask& mask, const SequenceContext& context, const at::Tensor& x,
                    Saved& saved);
  LayerTensors tensors_of(int64_t layer, const UnitWeights& weights, const SequenceContext& context) const {
    return {weights, context.rotary.at(static_cast<size_t>(layer)), config_.heads_of(layer)};
  }
  ShardedAttention& attention_of(int64_t layer) const {
    return config_.has_full_heads(layer) ? *full_attention_ : attention_;
  }
  // Calls body(begin, count) for each tile of tokens.
  template <typename Body>
  void in_tiles(int64_t tokens, const Body& body) const;

  const ModelConfig& config_;
  std::unique_ptr<const Layer> layer_;
  ShardedAttention& attention_;
  ShardedAttention* full_attention_;
  RecomputePlan plan_;
  int64_t tile_tokens_;
};

}  // namespace trireme
