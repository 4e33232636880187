#include "trireme/engine/memory_moments.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/round_up.h"
#include "trireme/base/sequence_layout.h"
#include "trireme/engine/attention_moments.h"
#include "trireme/engine/tile_bytes.h"

namespace trireme {
namespace {

using enum MemoryCategory;

// Of one call of the attention kernel.
int64_t heads_at_once(const MemoryShape& shape) {
  return (shape.heads_here + shape.head_chunks - 1) / shape.head_chunks;
}
int64_t kv_heads_at_once(const MemoryShape& shape) {
  if (shape.head_chunks == 1) return shape.kv_heads_here;
  const int64_t group = std::max<int64_t>(1, shape.model.heads / std::max<int64_t>(1, shape.model.kv_heads));
  const SequenceLayout rounds{shape.heads_here, shape.head_chunks};
  int64_t most = 0;
  for (int round = 0; round < shape.head_chunks; ++round) {
    const int64_t begin = shape.heads_begin + rounds.begin(round), end = begin + rounds.size(round);
    if (begin < end) most = std::max(most, (end - 1) / group - begin / group + 1);
  }
  return most;
}

// attention/cpu_flash_forward.cpp and cpu_flash_backward.cpp, whose constants these are.
int64_t attention_workspace_bytes(const MemoryShape& shape) {
  if (shape.attention_threads == 0) return 0;
  constexpr int64_t kPanel = 64, kStackRows = 128, kForwardKeys = 512, kBackwardKeys = 192;
  constexpr int64_t kPackedBytes = int64_t{16} << 20;
  const int64_t width = shape.model.head_dim, element = shape.attention_element_bytes;
  const int64_t depth = element == 4 ? width : round_up(width, 2), columns = round_up(width, 16);
  const int64_t panels = round_up(width, kPanel) / kPanel, queries = round_up(shape.local_tokens, kPanel);
  const int64_t keys = round_up(shape.gathers_keys ? shape.tokens : shape.local_tokens, kPanel);
  const int64_t head = (keys * depth + keys * kPanel * panels) * element;
  const int64_t shared =
      head * std::min(std::max<int64_t>(1, kPackedBytes / head), shape.batch * kv_heads_at_once(shape));
  const int64_t forward = kStackRows * 4 * (depth + 2 * kForwardKeys + columns);
  const int64_t backward =
      keys * 4 * 2 * columns + queries * 4 * (width + 2) + queries * element * 2 * (depth + panels * kPanel) +
      kBackwardKeys * element * (2 * depth + width) + kBackwardKeys * kPanel * (2 * 4 + 3 * 2);
  return shared + shape.attention_threads * std::max(forward, backward);
}

// Bytes of the buffers of one layer.
struct LayerBuffers {
  int64_t x;          // [B s, M], stored
  int64_t qkv;        // [B s, H + 2K, D]
  int64_t qkv_heads;  // [B, S, h + 2k, D]
  int64_t o;          // [B s, H, D]
  int64_t o_heads;    // [B, S, h, D]
  int64_t lse;        // [B, h, S] fp32
  int64_t packed;     // q, k and v for every rank
  int64_t kv_sums;    // dk and dv of this rank's tokens in fp32
  int64_t x1, mlp;    // kept of attention_output, in the dtype of tiles
  bool alone;         // one ulysses rank: what is by heads is what is by tokens
  // With head chunks: of one round's heads; q, k and v are then kept by tokens.
  bool chunked;
  int64_t round_heads = 0, round_kv_heads = 0;
  int64_t round_qkv, round_o;
  int64_t last_kv;   // the key/value head that stays for the next round
  int64_t dkv_sums;  // dk and dv of this rank's tokens in fp32

  explicit LayerBuffers(const MemoryShape& shape) {
    const ModelExtents& model = shape.model;
    const int64_t rows = shape.batch * shape.shard_tokens, whole = shape.batch * shape.local_tokens;
    const int64_t d = model.head_dim, e = shape.storage_bytes;
    x = rows * model.hidden * e;
    qkv = rows * (model.heads + 2 * model.kv_heads) * d * e;
    qkv_heads = whole * (shape.heads_here + 2 * shape.kv_heads_here) * d * e;
    o = rows * model.heads * d * e;
    o_heads = whole * shape.heads_here * d * e;
    lse = whole * shape.heads_here * 4;
    packed = rows * shape.packed_heads * d * e;
    // Blocks of 16 bits are widened to be added.
    kv_sums = rows * (2 * model.kv_heads + (e == 4 ? 0 : shape.kv_heads_here)) * d * 4;
    x1 = rows * model.hidden * shape.tile_bytes;
    mlp = rows * model.mlp_kept_width() * shape.tile_bytes;
    alone = shape.ulysses == 1;
    chunked = shape.head_chunks > 1;
    round_heads = heads_at_once(shape);
    round_kv_heads = kv_heads_at_once(shape);
    round_qkv = whole * (round_heads + 2 * round_kv_heads) * d * e;
    round_o = whole * round_heads * d * e;
    last_kv = 2 * whole * d * e;
    dkv_sums = rows * 2 * model.kv_heads * d * 4;
  }

  // q, k and v of this rank's heads, or with head chunks of its tokens.
  int64_t heads() const { return alone || chunked ? qkv : qkv_heads; }

  int64_t kept(const SavedSlots& slots) const {
    int64_t bytes = 0;
    if (slots[kX]) bytes += x;
    if (slots[kO]) bytes += o;
    if (slots[kLse]) bytes += lse;
    if (slots[kQ]) bytes += heads();
    if (slots[kOHeads] && !alone && !chunked) bytes += o_heads;
    if (slots[kX1]) bytes += x1;
    if (slots[kGateUp]) bytes += mlp;
    return bytes;
  }
};

class Moments {
 public:
  explicit Moments(const MemoryShape& shape) : shape_(shape), layer_(shape), tile_(tile_bytes(shape)) {
    held_[attention] = attention_workspace_bytes(shape);
    const int64_t rows = shape.batch * shape.shard_tokens,
                  table = shape.model.encoder ? 0 : shape.shard_tokens * shape.model.head_dim / 2 * 4;
    held_[other] = 5 * table;
    note("rotary tables");
    held_[other] = 2 * table + rows * (8 + 4);  // positions, losses
  }

  std::vector<MemoryMoment> walk() {
    const RecomputePlan& plan = shape_.recompute;
    held_[activations] = layer_.x;
    for (int64_t layer = 0; layer < plan.layers; ++layer) {
      name_ = cat("forward of layer ", layer);
      send_away(layer);
      forward(plan.kept_by_forward(layer), /*x_stays=*/plan.kept_by_forward(layer)[kX], /*o_is_there=*/false);
    }
    name_ = "head";
    send_away(plan.layers);
    note_with({{communication, trade_buffer_bytes(shape_)}}, ": new values");
    note_with({{tiles, tile_.head}});
    int64_t end = plan.layers;
    while (end > 0) {
      const int64_t begin = plan.group_begin(end - 1);
      bring_back(std::max<int64_t>(0, begin - kAheadLayers));
      group_backward(begin, end);
      end = begin;
    }
    note("gradient of the embedding");
    note_with({{communication, sum_buffer_bytes(shape_)}});
    return std::move(moments_);
  }

 private:
  void note(const std::string& what) { moments_.push_back({what, held_}); }
  void note_with(std::initializer_list<std::pair<MemoryCategory, int64_t>> more, const char* part = "") {
    MemoryMoment moment{cat(name_, part), held_};
    for (const auto& [category, bytes] : more) moment.bytes[category] += bytes;
    moments_.push_back(std::move(moment));
  }

  // Where activations are offloaded: memory/offloaded_activations.h keeps some layers here, and one is leaving.
  static constexpr int64_t kHereLayers = 3, kAheadLayers = 1;
  bool offloads() const {
    return shape_.offload.activations == Offload::disk ||
           (shape_.offload.activations == Offload::cpu && !shape_.device_is_host);
  }
  int64_t kept_of(int64_t layer) const { return layer_.kept(shape_.recompute.kept_by_forward(layer)); }
  // Before `layer` begins its forward.
  void send_away(int64_t layer) {
    if (!offloads() || layer <= kHereLayers) return;
    held_[activations] -= kept_of(layer - kHereLayers - 1);
    lowest_here_ = layer - kHereLayers;
  }
  // Layers from `lowest` on are here, or on their way.
  void bring_back(int64_t lowest) {
    for (; offloads() && lowest_here_ > lowest; --lowest_here_)
      held_[activations] += kept_of(lowest_here_ - 1);
  }

  // x -> y. At its end the running x is y; `slots` stay, and x itself where it is one of them.
  void forward(SavedSlots slots, bool x_stays, bool o_is_there) {
    slots.reset(kX);
    const int64_t kept_o = layer_.kept(slots & SavedSlots().set(kO));
    if (!o_is_there && layer_.chunked) {
      project();
      note_rounds_forward(layer_.qkv);
    } else if (!o_is_there) {
      project();
      note_attention(attention_forward_moments(shape_, shape_.heads_here, shape_.kv_heads_here),
                     layer_.heads());
      if (!layer_.alone) {
        const int64_t heads_kept = slots[kQ] ? layer_.heads() : 0;
        const int64_t copy = shape_.batch > 1 ? layer_.o_heads : 0;
        held_[activations] += heads_kept;
        note_with({{attention, layer_.o_heads + layer_.lse}, {communication, copy + layer_.o}}, ": exchange");
        note_with({{attention, layer_.o_heads + layer_.lse + layer_.o}, {communication, layer_.o}},
                  ": exchange");
        held_[activations] -= heads_kept;
      }
    }
    held_[activations] += layer_.kept(slots) + layer_.x;
    // Alone, o by heads is o by tokens.
    const int64_t o = kept_o > 0 || o_is_there ? 0 : layer_.o;
    note_with({{attention, o}, {tiles, tile_.output_forward}}, ": tiles");
    if (!x_stays) held_[activations] -= layer_.x;
  }

  // The layer's q, k and v by heads, from x.
  void project() {
    note_with({{attention, layer_.qkv}, {tiles, tile_.input_forward}}, ": projection");
    if (layer_.alone || layer_.chunked) return;
    note_with({{attention, layer_.qkv + layer_.qkv_heads}, {communication, layer_.packed}}, ": exchange");
  }

  void note_attention(const std::vector<AttentionMoment>& moments, int64_t own, int64_t messages = 0) {
    for (const AttentionMoment& moment : moments)
      note_with({{attention, own + moment.attention}, {communication, messages + moment.communication}},
                ": attention");
  }

  // attention/head_chunks.cpp, beside `own`: in a round's attention the next round is on its way, and the one before
  // on its way back. Of two rounds only one of these is there at a time. A message of one sample is no copy.
  struct Round {
    int64_t own;      // of what the caller holds, and the result
    int64_t arrived;  // what one round takes
    int64_t result;   // what one round gives back
    int64_t packed;   // messages of what arrives, and of what goes back
    int64_t sent;
  };
  void note_rounds(const Round& round, const std::vector<AttentionMoment>& moments) {
    const int64_t kept = shape_.batch == 1 ? round.result : 0, copy = shape_.batch == 1 ? 0 : round.result;
    const int64_t back = round.sent + copy;
    const bool both = shape_.head_chunks > 2;
    const auto at_round = [&](bool next, bool before) {
      const int64_t own = round.own + round.arrived * (next ? 2 : 1) + (before ? kept : 0);
      const int64_t messages = (next ? round.packed : 0) + (before ? back : 0);
      note_attention(moments, own, messages);
      note_with({{attention, own + 2 * round.result}, {communication, messages + back}}, ": rounds");
    };
    at_round(true, both);
    at_round(false, true);
  }
  void note_rounds_forward(int64_t own) {
    const LayerBuffers& at = layer_;
    const int64_t C = shape_.head_chunks;
    // o is not joined, so that it counts once.
    note_rounds(
        {own + at.o + at.lse + at.last_kv - at.round_o, at.round_qkv, at.round_o, at.packed / C, at.o / C},
        attention_forward_moments(shape_, at.round_heads, at.round_kv_heads));
  }
  void note_rounds_backward(int64_t own) {
    const LayerBuffers& at = layer_;
    const int64_t C = shape_.head_chunks;
    held_[communication] += at.dkv_sums;
    note_rounds({own + at.qkv + at.last_kv, at.round_qkv + 2 * at.round_o, at.round_qkv,
                 (at.packed + 2 * at.o) / C, at.packed / C},
                attention_backward_moments(shape_, at.round_heads, at.round_kv_heads));
    held_[communication] -= at.dkv_sums;
  }

  void group_backward(int64_t begin, int64_t end) {
    const RecomputePlan& plan = shape_.recompute;
    const auto again = [&](int64_t layer) {
      return plan.kept_by_rerun(layer) & ~plan.kept_by_forward(layer) & ~SavedSlots().set(kX);
    };
    // held_ has the running dx; a layer that runs again leaves its output as the next one's x.
    for (int64_t layer = begin; layer + 1 < end; ++layer) {
      name_ = cat("second forward of layer ", layer);
      forward(again(layer), /*x_stays=*/true, plan.kept_by_forward(layer)[kO]);
    }
    for (int64_t layer = end - 1; layer >= begin; --layer) {
      name_ = cat("backward of layer ", layer);
      SavedSlots slots = plan.kept_by_forward(layer);
      if (layer + 1 < end) slots |= again(layer);
      slots.set(kX);
      backward(slots);
    }
  }

  void backward(const SavedSlots& slots) {
    const LayerBuffers& at = layer_;
    int64_t own = 0;  // attention's buffers that were not kept
    if (!slots[kQ]) {
      project();
      own += at.heads();
    }
    const bool o_by_heads = !at.chunked && (!slots[kO] || (slots[kOHeads] && !at.alone));
    if (!slots[kO] && at.chunked) {
      note_rounds_forward(own);
      own += at.lse;
    } else if (!slots[kO]) {
      note_attention(attention_forward_moments(shape_, shape_.heads_here, shape_.kv_heads_here), own);
      own += at.o_heads + at.lse;
      if (!at.alone) {
        const int64_t copy = shape_.batch > 1 ? at.o_heads : 0;
        note_with({{attention, own}, {communication, copy + at.o}}, ": exchange");
        note_with({{attention, own + at.o}, {communication, at.o}}, ": exchange");
      }
    }
    const int64_t o_rows = slots[kO] || at.alone ? 0 : at.o;  // beside o by heads
    note_with({{attention, own + o_rows + at.o},
               {tiles, slots[kX1] ? tile_.output_backward_kept : tile_.output_backward}},
              ": output tiles");
    // x1 and what the MLP kept are gone, then the rest, piece by piece.
    int64_t freed = (slots[kX1] ? at.x1 : 0) + (slots[kGateUp] ? at.mlp : 0);
    held_[activations] -= freed;
    int64_t d_o = at.o;
    if (at.chunked) {
      note_rounds_backward(own + o_rows + at.o);
      const int64_t rest = at.kept(slots) - freed - at.x;
      held_[activations] -= rest;
      note_with({{attention, at.qkv}, {tiles, tile_.input_backward}}, ": input tiles");
      held_[activations] -= at.x;
      note_with({{communication, sum_buffer_bytes(shape_)}}, ": sum over ranks");
      return;
    }
    if (!at.alone) {
      const int64_t received = o_by_heads ? at.o_heads : 2 * at.o_heads;
      const int64_t packed = o_by_heads ? at.o : 2 * at.o;
      note_with({{attention, own + o_rows + at.o + received}, {communication, packed}}, ": exchange");
      if (slots[kO]) held_[activations] -= at.o;
      freed += slots[kO] ? at.o : 0;
      d_o = received;
    }
    note_attention(attention_backward_moments(shape_, shape_.heads_here, shape_.kv_heads_here), own + d_o);
    const int64_t rest = at.kept(slots) - freed - at.x;
    held_[activations] -= rest;
    if (at.alone) {
      note_with({{attention, 2 * at.qkv}}, ": joined gradients");
    } else {
      const int64_t copy = shape_.batch > 1 ? at.qkv_heads : 0;
      note_with({{attention, at.qkv_heads}, {communication, at.qkv_heads + copy + at.packed}}, ": exchange");
      note_with({{attention, at.qkv_heads + at.qkv}, {communication, at.packed + at.kv_sums}}, ": exchange");
    }
    note_with({{attention, at.qkv}, {tiles, tile_.input_backward}}, ": input tiles");
    held_[activations] -= at.x;
    note_with({{communication, sum_buffer_bytes(shape_)}}, ": sum over ranks");
  }

  const MemoryShape& shape_;
  LayerBuffers layer_;
  TileBytes tile_;
  MemoryBytes held_;
  int64_t lowest_here_ = 0;  // layer whose kept tensors are in memory, and all above it
  std::string name_;
  std::vector<MemoryMoment> moments_;
};

}  // namespace

std::vector<MemoryMoment> memory_moments(const MemoryShape& shape) {
  return Moments(shape).walk();
}

std::vector<int64_t> kept_bytes_of_layers(const MemoryShape& shape) {
  const LayerBuffers layer(shape);
  std::vector<int64_t> kept;
  kept.reserve(static_cast<size_t>(shape.recompute.layers));
  for (int64_t at = 0; at < shape.recompute.layers; ++at)
    kept.push_back(layer.kept(shape.recompute.kept_by_forward(at)));
  return kept;
}

}  // namespace trireme
