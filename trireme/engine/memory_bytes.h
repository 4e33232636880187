// How many bytes one rank's tensors take in a training step, category by category, known before the run: exact
// sums of the buffers that the code holds at its fullest moments, of which this page is the list. int64, no
// torch: the planner uses it too.
//
//   B samples of S tokens in one micro-batch, s of each on this rank; M hidden, I MLP width, H query and K
//   key/value heads of D, V vocabulary; h and k heads of this rank; e bytes of a stored value, t of one in a
//   tile (the dtype of the weights). A unit is the embedding, a layer, or the head.
//
//   parameters     all units x t; with ZeRO 3 the rank's shares, the unit at work and the next one
//   gradients      all units x 4; with ZeRO 2 and 3 the rank's shares and the open units; with update_in_backward the
//                  open units, and where the optimizer is offloaded the rank's share of the unit closed before
//   optimizer      of the rank's shares: fp32 masters (unless t is fp32), the moments; on disk: of four units
//   activations    what recompute_plan.h keeps of every layer, the running x, what a group made again
//   attention      of one layer: q, k, v, o, lse, do, dq, dk, dv; the kernel's packed tiles
//   tiles          of T tokens: forward 2 M + 3 I values, backward 4 M + 4 I; the head 3 M + V; encoders: the larger of
//                  M + 2 I and 2 M + I, that of 3 M + 2 I and 4 M + I; 6 M + V (tile_bytes.h)
//   communication  one exchange's packed and received heads, or one unit's sum
//   other          rotary tables, positions, losses
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/device/memory_category.h"
#include "trireme/engine/recompute_plan.h"
#include "trireme/memory/offload.h"

namespace trireme {

inline constexpr int64_t kFloat_bytes = 4;

// The extents of a model that bytes depend on.
struct ModelExtents {
  int64_t layers = 0;
  int64_t hidden = 0;        // M
  int64_t intermediate = 0;  // I
  int64_t heads = 0;         // H
  int64_t kv_heads = 0;      // K
  int64_t head_dim = 0;      // D
  int64_t vocab = 0;         // V
  bool tied = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  // BERT: biases everywhere, no gate, rows for positions and token types.
  bool encoder = false;
  int64_t positions = 0;
  int64_t token_types = 0;

  // As ModelConfig's.
  int64_t mlp_kept_width() const { return encoder ? intermediate + hidden : 2 * intermediate; }
};

struct MemoryShape {
  ModelExtents model;
  // This rank's part of a micro-batch.
  int64_t batch = 1;         // B
  int64_t tokens = 0;        // S
  int64_t shard_tokens = 0;  // s
  int64_t local_tokens =
      0;            // n: of this rank's ring place, whose Ulysses ranks hold them together; S where ring is 1
  int ulysses = 1;  // ranks that trade sequence for heads
  int ring = 1;     // ring places that share a sequence
  int sp_rank = 0;  // of ulysses x ring
  bool gathers_keys = false;  // RingMethod::gather
  int head_chunks = 1;
  int64_t heads_begin = 0;    // the first of this rank's query heads
  int64_t heads_here = 0;     // h
  int64_t kv_heads_here = 0;  // k
  int64_t packed_heads = 0;   // sum over the ulysses ranks of h + 2k: key/value heads may go to several ranks
  int ranks = 1;              // of the whole run, over which stores shard
  int rank = 0;
  bool device_is_host = true;  // the CPU, where offload to the host moves nothing
  // Policies.
  int zero = 0;  // ZeRO stage
  RecomputePlan recompute;
  OffloadOptions offload;
  bool update_in_backward = false;
  int64_t tile_tokens = 0;
  int64_t logits_tile_tokens = 0;
  // Bytes of an element.
  int64_t storage_bytes = 4;  // e
  int64_t tile_bytes = 4;     // t
  int product_threads =
      0;  // of the CPU, that a product of 16 bits copies blocks on; 0: products have no workspace
  int64_t reduce_bytes = 4;    // of gradients that travel
  int64_t state_bytes = 4;     // of a moment
  int moments = 2;             // AdamW 2, SGD 0
  bool narrow_kernel = false;  // CUDA's for moments of 16 bits (shard/narrow_adamw.h), which has no workspace
  // A kernel of CUDA; it and the CPU's know their workspace, the reference kernel's is not counted.
  bool fused_on_gpu = false;
  // The CPU's attention kernel; 0 threads: another one.
  int attention_threads = 0;
  int64_t attention_element_bytes = 4;  // that its tiles are multiplied in
};

// What a step takes at most: each category by itself, and all together. The total is an upper bound that is
// reached where parameters, gradients and the optimizer's state do not change their size during a step. So is each
// part that depends on when a disk or a worker is done: what is on its way to a disk, what is stepped beside the walk.
struct MemoryForecast {
  MemoryBytes peak;
  int64_t peak_total_bytes = 0;
  MemoryBytes host;  // beside a GPU, of the host's memory (host_memory_bytes.h)
};
MemoryForecast memory_forecast(const MemoryShape& shape);

// The walk goes on while units are stepped (engine/deferred_updates.h).
inline bool updates_are_deferred(const MemoryShape& shape) {
  return shape.offload.optimizer != Offload::none;
}

// Whether what is put there takes the device's memory: on a CPU it does wherever it is put, while it is read.
inline bool on_device(const MemoryShape& shape, Offload place) {
  return place == Offload::none || shape.device_is_host;
}

// The parts of it: what the stores hold (memory_bytes.cpp), and what the walk does (memory_moments.h).

// Elements of each unit's flat buffer, as model/parameter_layout.h cuts it: embedding, layers, head.
std::vector<int64_t> unit_elements(const ModelExtents& model);
// This rank's share of each unit, as shard/unit_shares.h cuts it.
std::vector<int64_t> share_elements(const std::vector<int64_t>& units, int ranks, int rank);
// This rank's share of each unit; the whole where nothing is sharded.
std::vector<int64_t> own_shares(const MemoryShape& shape);
// The most that neighbours, `width` of them, come to.
int64_t largest_run(const std::vector<int64_t>& values, size_t width);

int64_t parameter_bytes(const MemoryShape& shape);
int64_t gradient_bytes(const MemoryShape& shape);
int64_t optimizer_bytes(const MemoryShape& shape);
// Of the sum of one unit's gradient over ranks.
int64_t sum_buffer_bytes(const MemoryShape& shape);
// Of trading the head's new values at its first use after a step (ZeRO 1 and 2), when most activations are kept. For
// other units the sum of their gradients takes more, at a moment that is as full.
int64_t trade_buffer_bytes(const MemoryShape& shape);

}  // namespace trireme
