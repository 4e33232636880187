// One decoder layer on this rank's slice: the token-wise halves in tiles, attention between them through
// Ulysses' exchanges.
//
//   forward   x_BsM -> attention_input (tiles) -> qkv_BsND -> all-to-all -> local attention -> all-to-all ->
//   o_BsHD
//             -> attention_output (tiles) -> y_BsM
//   backward  the same way back, with what the recompute policy did not keep made again
//
// What is kept (Saved):      none                                     keep_attention     full
//                            x, q, k, v, o_BShD, lse, o_BsHD, x1,     x, o_BsHD, lse     x
//                            gate|up
// exchanges in backward:     2                                        3                  4
#pragma once

#include <ATen/ATen.h>

#include "trireme/attention/local_attention.h"
#include "trireme/attention/ulysses.h"
#include "trireme/comm/group.h"
#include "trireme/engine/engine_options.h"
#include "trireme/memory/activation_store.h"
#include "trireme/model/decoder_layer.h"

namespace trireme {

// What all layers of one forward share.
struct SequenceContext {
  int64_t batch = 1;                    // B
  int64_t shard_tokens = 0;             // s
  UlyssesShape shape;                   // S over the ulysses group
  RotaryTable rotary;                   // of this rank's positions
  at::ScalarType storage = at::kFloat;  // dtype of what lies between tiles
};

class LayerRunner {
 public:
  LayerRunner(const ModelConfig& config, Group& ulysses, LocalAttention& attention, Recompute recompute,
              int64_t tile_tokens)
      : config_(config),
        ulysses_(ulysses),
        attention_(attention),
        recompute_(recompute),
        tile_tokens_(tile_tokens) {}

  // x [B * s, M] -> y [B * s, M]. With `saved`, fills it for backward (x is kept, not copied). Collective.
  at::Tensor forward(int64_t layer, const DecoderTensors& weights, const SequenceContext& context,
                     const at::Tensor& x, Saved* saved);
  // dy [B * s, M] -> dx [B * s, M]; may write over dy. Adds to the gradients. Collective.
  at::Tensor backward(int64_t layer, const DecoderTensors& weights, DecoderTensors& gradients,
                      const SequenceContext& context, Saved saved, at::Tensor dy);

 private:
  struct Attended;  // q, k, v, o, lse of this rank's heads
  AttentionSpec spec(int64_t layer) const;
  LayerTensors tensors(const DecoderTensors& weights, const SequenceContext& context) const;
  HeadsQkv project(const LayerTensors& layer, const SequenceContext& context, const at::Tensor& x);

  const ModelConfig& config_;
  Group& ulysses_;
  LocalAttention& attention_;
  Recompute recompute_;
  int64_t tile_tokens_;
};

}  // namespace trireme
