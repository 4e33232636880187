// One layer on this rank's slice: the token-wise parts in tiles, attention between them through
// Ulysses' exchanges, or a DeltaNet through its own (sharded_delta_net.h), whose columns stand for q, k and v.
//
//   forward   x_BsM -> before attention (tiles) -> qkv_BsND -> all-to-all -> local attention -> all-to-all
//             -> o_BsHD -> after attention (tiles) -> y_BsM
//                                            gate_BsA -> (which multiplies o)
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
// has three exchanges too. The ring's are beside these. The gate is kept and made again with q, k and v.
#pragma once

#include <memory>

#include <ATen/ATen.h>

#include "trireme/attention/ulysses.h"
#include "trireme/engine/across_layers.h"
#include "trireme/engine/sharded_delta_net.h"
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
  SampleLayout layout;
  at::Tensor document_begins_BS;   // kernels/document_begins.h, of models with a DeltaNet; or undefined
  AcrossLayers* across = nullptr;  // written by layers that give keys, and in backward
};

// Of a layer, by tokens.
struct Projection {
  at::Tensor qkv;   // [B, s, N, D]
  at::Tensor gate;  // [B * s, A] or undefined
};

// What stands between the two token-wise parts.
struct LayerMixing {
  ShardedAttention& attention;
  ShardedAttention* full_attention = nullptr;  // of layers with heads of their own (ModelConfig::full_heads)
  ShardedDeltaNet* delta_net = nullptr;        // of layers without attention
};

class LayerRunner {
 public:
  LayerRunner(const ModelConfig& config, const LayerMixing& mixing, const RecomputePlan& plan,
              int64_t tile_tokens)
      : config_(config),
        layer_(config.family->layer(config)),
        mixing_(mixing),
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
  // What one pass of a layer reads, forward or backward.
  struct LayerPass {
    LayerTensors tensors;
    const SequenceContext& context;
    const SequenceMask& mask;
    ShardedAttention& attention;         // where there is no DeltaNet
    AcrossLayers::Keys* keys = nullptr;  // that this layer gives to later ones, or takes
  };
  LayerPass pass_of(int64_t layer, const UnitWeights& weights, const SequenceContext& context) const;
  ShardedDeltaNet::Inputs delta_inputs(const LayerPass& pass) const {
    return {pass.tensors, pass.context.layout, pass.context.document_begins_BS};
  }
  Projection project(const LayerPass& pass, const at::Tensor& x);
  // Attention's or the DeltaNet's, as ShardedAttention names them.
  at::Tensor exchange(const LayerPass& pass, at::Tensor qkv_BsND);
  ShardedOutput mix(const LayerPass& pass, at::Tensor qkv);
  at::Tensor mix_backward(const LayerPass& pass, UnitGradients& gradients, at::Tensor do_BsHD, at::Tensor qkv,
                          ShardedOutput output);
  // Of a layer that gives or takes keys, d(k, v) by tokens: to it, or on to the layer that gave them.
  void pass_on_key_gradients(const LayerPass& pass, const at::Tensor& dqkv_RND);
  // Attention of forward: o [B, s, H, D], and its gate; fills the slots `keep`.
  at::Tensor attend(SavedSlots keep, const LayerPass& pass, const at::Tensor& x, Saved& saved,
                    at::Tensor& gate);
  // Calls body(begin, count) for each tile of tokens.
  template <typename Body>
  void in_tiles(int64_t tokens, const Body& body) const;

  const ModelConfig& config_;
  std::unique_ptr<const Layer> layer_;
  LayerMixing mixing_;
  RecomputePlan plan_;
  int64_t tile_tokens_;
};

}  // namespace trireme
