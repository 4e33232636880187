// Bytes of the buffers of one layer on this rank: those that its pass makes, and those that its forward keeps.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

struct LayerBuffers {
  bool alone;    // one Ulysses rank: what is by heads is what is by tokens
  bool chunked;  // with head chunks q, k and v are kept by tokens
  bool ring;
  bool delta_net;  // in place of attention: columns for q, k and v, neither a log-sum-exp nor o by heads kept
  int64_t x;       // [B s, M], stored
  int64_t qkv;     // [B s, H + 2K, D]
  int64_t qkv_heads;      // [B, n, h + 2k, D]
  int64_t o;              // [B s, H, D]
  int64_t o_heads;        // [B, n, h, D]
  int64_t lse;            // [B, h, n] fp32
  int64_t packed;         // q, k and v for every rank
  bool ranks_overlap;     // several ranks have a key/value head, or a column of a DeltaNet
  int64_t overlap_sums;   // then: dk and dv of this rank's tokens, or d(columns), in fp32
  int64_t overlap_block;  // what is added to them: in 16 bits it is widened
  int64_t kv, kv_sums;    // [B s, 2K, D] that later layers share, and their gradients in fp32
  int64_t gate;           // [B s, A] of what multiplies attention's output
  int64_t x1, mlp;        // kept of attention's output and of the MLP, in the dtype of tiles

  explicit LayerBuffers(const ForecastInputs& inputs);

  // q, k and v of this rank's heads, or with head chunks of its tokens.
  int64_t rank_qkv() const { return alone || chunked ? qkv : qkv_heads; }

  // Of bytes of all tokens, a copy in another order: ranks of a ring hold pieces of the sample.
  int64_t ordered(int64_t bytes) const { return delta_net && ring ? bytes : 0; }

  int64_t kept(const SavedSlots& slots) const;

 private:
  void set_delta_net(const ForecastInputs& inputs, int64_t row_bytes);
};

// What each layer's forward keeps for its backward.
std::vector<int64_t> kept_bytes_of_layers(const ForecastInputs& inputs);
// The same of the layers whose kept tensors leave with --offload_activations cpu or disk: of those that keep
// any, all but the last, which stay.
std::vector<int64_t> leaving_bytes_of_layers(const ForecastInputs& inputs);

}  // namespace trireme
