#include "trireme/forecast/memory_timeline.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/forecast/delta_net_snapshots.h"
#include "trireme/forecast/head_chunk_bytes.h"
#include "trireme/forecast/layer_buffers.h"
#include "trireme/forecast/layer_kinds.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/forecast/tile_bytes.h"

namespace trireme {
namespace {

using enum MemoryCategory;

// Of one kind of layers.
struct KindBytes {
  LayerBuffers layer;
  std::vector<HeadChunkBytes> chunks;
  TileBytes tile;

  explicit KindBytes(const ForecastInputs& inputs)
      : layer(inputs), chunks(chunks_of(inputs)), tile(tile_bytes(inputs)) {}

 private:
  static std::vector<HeadChunkBytes> chunks_of(const ForecastInputs& inputs) {
    if (!inputs.model.delta_net) return head_chunk_bytes(inputs);
    HeadChunkBytes whole{};
    whole.attention = delta_net_snapshots(inputs);
    return {whole};
  }
};

// Values of heads that tables of cosines and sines are made for, one after the other.
std::vector<int64_t> rotary_widths(const ModelSizes& model) {
  const int64_t turning = model.turning_width > 0 ? model.turning_width : model.head_dim;
  std::vector<int64_t> widths(static_cast<size_t>(model.rotary_tables), turning);
  if (model.full_heads && !widths.empty()) widths = {model.full_heads->width, model.head_dim};
  return widths;
}

// The fewest layers after which kinds and sizes of layers repeat: 1 where all are alike, 6 of a Gemma 4, whose
// every sixth layer has full attention; the number of layers where nothing repeats.
int64_t period_of(const ModelSizes& model, const std::vector<size_t>& kind_of_layer) {
  const int64_t layers = std::ssize(kind_of_layer);
  if (!model.layers_of_keys.empty()) return layers;
  const auto is_alike = [&](int64_t layer, int64_t other) {
    const auto a = static_cast<size_t>(layer), b = static_cast<size_t>(other);
    const size_t unit_a = model.first_layer_unit() + a, unit_b = model.first_layer_unit() + b;
    return kind_of_layer[a] == kind_of_layer[b] &&
           model.unit_elements[unit_a] == model.unit_elements[unit_b] &&
           model.trained_elements(unit_a) == model.trained_elements(unit_b);
  };
  // Of the layers up to each: how many of the first the last ones repeat, at most and not all of them (Knuth,
  // Morris and Pratt).
  std::vector<int64_t> repeated(kind_of_layer.size(), 0);
  for (int64_t layer = 1; layer < layers; ++layer) {
    int64_t count = repeated[static_cast<size_t>(layer) - 1];
    while (count > 0 && !is_alike(count, layer)) count = repeated[static_cast<size_t>(count) - 1];
    repeated[static_cast<size_t>(layer)] = count + (is_alike(count, layer) ? 1 : 0);
  }
  return layers - repeated.back();
}

class Timeline {
 public:
  Timeline(const ForecastInputs& inputs, bool every_layer) : inputs_(inputs), plan_(inputs.recompute) {
    LayerKinds kinds = layer_kinds(inputs);
    for (const ForecastInputs& kind : kinds.inputs) kinds_.emplace_back(kind);
    kind_of_layer_ = std::move(kinds.of_layer);
    go_to(kinds_.front());
    alike_after_ = every_layer ? plan_.layers
                               : std::lcm(period_of(inputs.model, kind_of_layer_), plan_.checkpoint_every);
    for (int64_t layer = 0; layer < plan_.layers; ++layer) {
      if (kept_of(layer) > 0) keeping_.push_back(layer);
      if (inputs.model.shares_keys(static_cast<size_t>(layer)))
        giving_keys_.insert(inputs.model.layers_of_keys[static_cast<size_t>(layer)]);
    }
    for (const KindBytes& kind : kinds_)
      for (const HeadChunkBytes& chunk : kind.chunks)
        held_[attention] = std::max(held_[attention], chunk.attention.flash_workspace_bytes);
  }

  std::vector<MemorySnapshot> run() {
    const ModelSizes& model = inputs_.model;
    if (inputs_.micro_batches > 1 && inputs_.zero >= 2 && sums_go_beside_backward(inputs_))
      begin_sum(model.lowest_trained_unit());  // of the micro-batch before
    const int64_t rows = (inputs_.packed ? inputs_.batch : 1) * inputs_.shard_tokens;
    int64_t tables = 0;
    for (const int64_t width : rotary_widths(model)) {
      const int64_t values = rows * width / 2 * kFloat_bytes;
      held_[other] = std::max(held_[other], tables + 5 * values);  // while it is made
      tables += 2 * values;
    }
    record("rotary tables");
    const int64_t scales = model.scales_queries(inputs_.tokens) ? rows * kFloat_bytes : 0;
    const int64_t begins = model.delta_net && inputs_.packed ? inputs_.batch * inputs_.tokens * 4 : 0;
    held_[other] =
        tables + scales + begins + inputs_.batch * inputs_.shard_tokens * (8 + 4);  // positions, losses
    held_[activations] = layer_->x;
    if (model.has_layer_inputs()) make_layer_inputs();
    for (int64_t layer = 0; layer < plan_.layers; ++layer) {
      name_pass("forward", layer);
      ++units_.gathered;
      send_away(layer);
      const SavedSlots slots = plan_.kept_by_forward(layer);
      const int64_t alike = layer + alike_after_;
      if (alike + 1 < plan_.layers && plan_.kept_by_forward(alike) == slots)
        held_[activations] += layer_->kept(slots);
      else
        forward(slots, /*has_o=*/false);
    }
    going_back_ = true;
    name_pass("head");
    const int head_unit = static_cast<int>(model.unit_elements.size()) - 1;
    // A unit that is trained is opened, so that the sum of the micro-batch before is over.
    if (trained_elements(head_unit) > 0 || (model.tied && trained_elements(kEmbeddingUnit) > 0)) finish_sum();
    units_.gathered += model.tied ? 2 : 1;
    send_away(plan_.layers);
    units_.open = head_unit;
    record("tiles", {{tiles, tile_->head}});
    close_unit();
    for (int64_t end = plan_.layers; end > 0; end = plan_.group_begin(end - 1)) {
      const int64_t begin = plan_.group_begin(end - 1);
      bring_back(begin);
      if (is_like_a_group_after(begin, end))
        pass_over(begin, end);
      else
        group_backward(begin, end);
    }
    if (model.has_layer_inputs() && !model.adapted()) layer_inputs_backward();
    name_pass("gradient of the embedding");
    if (model.embedding_read_backward && !model.adapted()) ++units_.gathered;
    units_.open = kEmbeddingUnit;
    record("gradient");
    close_unit();
    finish_sum();
    if (!sums_at_close()) {
      const int64_t largest = std::ranges::max(trained_inputs(inputs_).model.unit_elements);
      record("sums of the step", {{communication, sum_buffer_bytes(inputs_, largest)}});
    }
    return std::move(snapshots_);
  }

 private:
  int64_t layer_inputs_bytes() const {
    return inputs_.batch * inputs_.shard_tokens * plan_.layers * inputs_.model.layer_input_width *
           inputs_.storage_bytes;
  }
  // What layers are told beside x, and x itself, which the first layer keeps as well, stay until their
  // gradients.
  void make_layer_inputs() {
    name_pass("layers' inputs");
    ++units_.gathered;
    held_[activations] += layer_inputs_bytes();
    record("tiles", {{tiles, tile_->layer_inputs_forward}});
  }
  void layer_inputs_backward() {
    name_pass("gradient of layers' inputs");
    ++units_.gathered;
    units_.open = kLayerInputsUnit;
    if (!holds_first_x_) held_[activations] += layer_->x;
    record("tiles", {{tiles, tile_->layer_inputs_backward}});
    held_[activations] -= layer_inputs_bytes() + layer_->x;
    close_unit();
  }
  bool gives_keys(int64_t layer) const { return giving_keys_.contains(layer); }
  // Those of the first layer to share them in backward, and when the layer that gave them is done.
  void pass_on_key_gradients() {
    if (inputs_.model.layers_of_keys.empty()) return;
    const int64_t source = inputs_.model.layers_of_keys[static_cast<size_t>(pass_layer_)];
    if (source != pass_layer_) {
      if (!summed_keys_.insert(source).second) return;
      held_[activations] += layer_->kv_sums;
    } else if (gives_keys(pass_layer_)) {
      held_[activations] -= layer_->kv + layer_->kv_sums;
    }
  }
  // What is held, and `more`.
  void record(const char* phase, std::initializer_list<std::pair<MemoryCategory, int64_t>> more = {}) {
    snapshots_.push_back({pass_, phase, pass_layer_, held_, units_});
    for (const auto& [category, bytes] : more) snapshots_.back().bytes[category] += bytes;
  }

  // False: ZeRO 0 and 1 sum what micro-batches came to, when the last of them is done.
  bool sums_at_close() const {
    return inputs_.zero >= 2 || inputs_.update_in_backward || sums_go_beside_backward(inputs_);
  }
  int64_t trained_elements(int unit) const {
    return inputs_.model.trained_elements(static_cast<size_t>(unit));
  }
  int64_t sum_buffer_of(int unit) const { return sum_buffer_bytes(inputs_, trained_elements(unit)); }
  int64_t begun_sum_of(int unit) const { return begun_sum_bytes(inputs_, trained_elements(unit)); }
  // What is there beside the begun sum while it is made: where ranks read each other's memory at once, else
  // when it is finished.
  int64_t making_sum_of(int unit) const { return sum_buffer_of(unit) - begun_sum_of(unit); }
  bool sums_when_begun() const { return inputs_.rank_sums == RankSums::while_reading; }
  void begin_sum(int unit) {
    held_[communication] += begun_sum_of(unit);
    units_.summing = unit;
  }
  // Of the unit closed before.
  void finish_sum() {
    if (units_.summing < 0) return;
    record("sum over ranks", {{communication, sums_when_begun() ? 0 : making_sum_of(units_.summing)}});
    held_[communication] -= begun_sum_of(units_.summing);
    units_.summing = -1;
  }
  // The open unit's gradient is summed when its parameters are released.
  void close_unit() {
    units_.released = true;
    if (sums_go_beside_backward(inputs_)) {
      finish_sum();
      const int unit = units_.open;
      record("begun sum over ranks",
             {{communication, begun_sum_of(unit) + (sums_when_begun() ? making_sum_of(unit) : 0)}});
      begin_sum(unit);
    } else if (sums_at_close())
      record("sum over ranks", {{communication, sum_buffer_of(units_.open)}});
    units_.released = false;
    units_.closed = std::exchange(units_.open, -1);
  }

  int unit_of(int64_t layer) const { return inputs_.model.end_units().layer_unit(layer); }
  void name_pass(const char* pass, int64_t layer = -1) {
    pass_ = pass;
    pass_layer_ = layer;
    if (layer >= 0) go_to(kind_of(layer));
  }

  // Also in what is gathered next, which is another unit than a layer behind the first group, and in the layer
  // whose sum goes beside it.
  bool is_like_a_group_after(int64_t begin, int64_t end) const {
    const int64_t behind = sums_go_beside_backward(inputs_) ? end - begin : 0;
    if (begin == 0 || end + alike_after_ + behind > plan_.layers) return false;
    for (int64_t layer = begin; layer < end; ++layer)
      if (plan_.kept_by_forward(layer) != plan_.kept_by_forward(layer + alike_after_)) return false;
    return true;
  }

  void pass_over(int64_t begin, int64_t end) {
    for (int64_t layer = begin; layer < end; ++layer) held_[activations] -= kept_of(layer);
    units_.gathered += static_cast<size_t>(2 * (end - begin) - 1);
    units_.closed = unit_of(begin);
    if (units_.summing < 0) return;
    held_[communication] += begun_sum_of(units_.closed) - begun_sum_of(units_.summing);
    units_.summing = units_.closed;
  }

  void go_to(const KindBytes& kind) {
    layer_ = &kind.layer;
    chunks_ = &kind.chunks;
    tile_ = &kind.tile;
  }
  const KindBytes& kind_of(int64_t layer) const {
    return kinds_[kind_of_layer_.at(static_cast<size_t>(layer))];
  }
  int64_t kept_of(int64_t layer) const { return kind_of(layer).layer.kept(plan_.kept_by_forward(layer)); }
  // Before `layer` begins its forward. Of the layers that keep something the store holds some, and some are
  // leaving.
  void send_away(int64_t layer) {
    const auto put = static_cast<size_t>(std::ranges::lower_bound(keeping_, layer) - keeping_.begin());
    const auto staying = static_cast<size_t>(inputs_.resident_layers + ResidentLayers{}.leaving_layers);
    for (; activations_leave(inputs_) && first_resident_ + staying < put; ++first_resident_) {
      held_[activations] -= kept_of(keeping_[first_resident_]);
      if (keeping_[first_resident_] == 0) hold_first_x();
    }
  }
  // Its copy leaves or comes back, but the tensor stays for the gradient of layers' inputs.
  void hold_first_x() {
    if (holds_first_x_ || !inputs_.model.has_layer_inputs() || inputs_.model.adapted()) return;
    holds_first_x_ = true;
    held_[activations] += layer_->x;
  }
  // Layers from `begin` on are in memory, or on their way to it, and the next ones below.
  void bring_back(int64_t begin) {
    const auto taken = std::ranges::lower_bound(keeping_, begin) - keeping_.begin();
    const auto lowest = static_cast<size_t>(std::max<int64_t>(0, taken - ResidentLayers{}.ahead_layers));
    for (; activations_leave(inputs_) && first_resident_ > lowest; --first_resident_)
      held_[activations] += kept_of(keeping_[first_resident_ - 1]);
    // What is still leaving comes back to new memory.
    if (first_resident_ == 0 && activations_leave(inputs_) && std::ssize(keeping_) > inputs_.resident_layers)
      hold_first_x();
  }

  // x -> y. At its end the running x is y; `slots` stay, and x itself where it is one of them.
  void forward(SavedSlots slots, bool has_o) {
    const bool keeps_x = slots[kX];
    slots.reset(kX);
    if (!has_o) {
      project();
      if (!going_back_ && gives_keys(pass_layer_)) held_[activations] += layer_->kv;
      const int64_t results = run_attention(layer_->rank_qkv());
      if (!layer_->alone && !layer_->chunked) exchange_o(results + (slots[kQkv] ? layer_->rank_qkv() : 0));
    }
    const int64_t gate = has_o || slots[kGate] ? 0 : layer_->gate;  // that is dropped with the layer
    if (!has_o) held_[attention] += gate - layer_->gate;
    held_[activations] += layer_->kept(slots) + layer_->x;
    // Alone, o by heads is o by tokens.
    record("tiles",
           {{attention, slots[kO] || has_o ? 0 : layer_->o},
            {tiles, slots[kGateUp] ? tile_->after_attention_forward_kept : tile_->after_attention_forward}});
    held_[attention] -= gate;
    if (!keeps_x) held_[activations] -= layer_->x;
  }

  // The layer's q, k and v by heads, from x; the gate stays.
  void project() {
    held_[attention] += layer_->gate;
    record("projection", {{attention, layer_->qkv}, {tiles, tile_->before_attention_forward}});
    if (!layer_->alone && !layer_->chunked)
      record("exchange", {{attention, layer_->qkv + layer_->qkv_heads + layer_->ordered(layer_->qkv_heads)},
                          {communication, layer_->packed}});
  }

  void record_attention(const std::vector<AttentionSnapshot>& snapshots, int64_t beside,
                        int64_t messages = 0) {
    for (const AttentionSnapshot& snapshot : snapshots)
      record("attention",
             {{attention, beside + snapshot.attention}, {communication, messages + snapshot.communication}});
  }

  // Attention beside q, k and v. -> what it leaves beside them: lse, and o by heads where it is not sent
  // chunk by chunk.
  int64_t run_attention(int64_t qkv) {
    if (!layer_->chunked) {
      record_attention(chunks_->front().attention.forward, qkv);
      return layer_->o_heads + layer_->lse;
    }
    record_chunks(Pass::forward, qkv + layer_->o + layer_->lse);
    return layer_->lse;
  }

  void exchange_o(int64_t beside) {
    const int64_t copy = inputs_.batch > 1 ? layer_->o_heads : 0;
    record("exchange",
           {{attention, beside + layer_->ordered(layer_->o_heads)}, {communication, copy + layer_->o}});
    record("exchange", {{attention, beside + layer_->o}, {communication, layer_->o}});
  }

  // During a chunk's attention the next chunk is on its way, and the one before on its way back. A message of one
  // sample is no copy.
  enum class Pass { forward, backward };
  void record_chunks(Pass pass, int64_t beside) {
    const bool back = pass == Pass::backward, one_sample = inputs_.batch == 1;
    const auto arriving = [&](const HeadChunkBytes& chunk) {
      return chunk.arriving + (back ? chunk.pair : 0);
    };
    // To the chunk, and from it.
    const auto message = [&](const HeadChunkBytes& chunk) {
      return chunk.qkv_message + (back ? 2 * chunk.o_message : 0);
    };
    const auto result = [&](const HeadChunkBytes& chunk) {
      return back ? chunk.gradient_message : chunk.o_message;
    };
    const auto leaving = [&](const HeadChunkBytes& chunk) { return back ? chunk.leaving : chunk.o; };
    for (size_t c = 0; c < chunks_->size(); ++c) {
      const HeadChunkBytes& chunk = chunks_->at(c);
      int64_t held = beside + arriving(chunk) + chunk.staying, messages = 0;
      if (c + 1 < chunks_->size()) {
        held += arriving(chunks_->at(c + 1));
        messages += message(chunks_->at(c + 1));
      }
      if (c > 0) {
        const int64_t before = leaving(chunks_->at(c - 1));
        held += one_sample ? before : 0;
        messages += result(chunks_->at(c - 1)) + (one_sample ? 0 : before);
      }
      record_attention(back ? chunk.attention.backward_of_pair : chunk.attention.forward,
                       held + (back ? chunk.sums_before : 0), messages);
      // o is sent as it is.
      held +=
          back ? std::max(chunk.sums_before, chunk.sums_after) + chunk.gradients + chunk.leaving : chunk.o;
      record("chunk", {{attention, held},
                       {communication, messages + result(chunk) + (one_sample ? 0 : leaving(chunk))}});
    }
  }

  void group_backward(int64_t begin, int64_t end) {
    const auto kept_again = [&](int64_t layer) {
      return (plan_.kept_by_rerun(layer) & ~plan_.kept_by_forward(layer)).set(kX);
    };
    // held_ has the running dx; a layer that runs again leaves its output as the next one's x.
    for (int64_t layer = begin; layer + 1 < end; ++layer) {
      name_pass("second forward", layer);
      ++units_.gathered;
      forward(kept_again(layer), plan_.kept_by_forward(layer)[kO]);
    }
    for (int64_t layer = end - 1; layer >= begin; --layer) {
      name_pass("backward", layer);
      ++units_.gathered;
      units_.open = unit_of(layer);
      SavedSlots slots = plan_.kept_by_forward(layer).set(kX);
      if (layer + 1 < end) slots |= kept_again(layer);
      backward(slots);
    }
  }

  void backward(const SavedSlots& slots) {
    int64_t beside = 0;  // attention's buffers that were not kept
    int64_t freed = 0;   // of what was kept, one after the other
    const auto free_kept = [&](int64_t bytes) {
      held_[activations] -= bytes;
      freed += bytes;
    };
    if (!slots[kQkv]) {
      if (slots[kGate]) free_kept(layer_->gate);  // made again with q, k and v
      project();
      beside += layer_->rank_qkv();
    }
    if (!slots[kO]) {
      beside += run_attention(beside);
      if (!layer_->alone && !layer_->chunked) exchange_o(beside);
      if (!layer_->alone && layer_->delta_net) beside -= layer_->o_heads;
    }
    int64_t o_rows = slots[kO] || layer_->alone ? 0 : layer_->o;  // beside o by heads
    record("tiles after attention",
           {{attention, beside + o_rows + layer_->o},
            {tiles, slots[kX1] ? tile_->after_attention_backward_kept : tile_->after_attention_backward}});
    // x1 and what the MLP kept are freed first, the rest as attention goes on.
    free_kept((slots[kX1] ? layer_->x1 : 0) + (slots[kGateUp] ? layer_->mlp : 0));
    if (layer_->delta_net) {  // which does not read o
      if (slots[kO]) free_kept(layer_->o);
      if (!slots[kO] && layer_->alone) beside -= layer_->o;
      o_rows = 0;
    }
    if (layer_->chunked) {
      held_[communication] += layer_->overlap_sums;
      record_chunks(Pass::backward, beside + o_rows + layer_->o + layer_->qkv);
      held_[communication] -= layer_->overlap_sums;
    } else {
      int64_t d_o = layer_->o;
      // o is sent beside d(o)
      const bool pair = !layer_->alone && slots[kO] && !slots[kOHeads] && !layer_->delta_net;
      if (!layer_->alone) {
        const int sent = pair ? 2 : 1;
        d_o = sent * layer_->o_heads;
        record("exchange", {{attention, beside + o_rows + layer_->o + d_o + layer_->ordered(d_o)},
                            {communication, sent * layer_->o}});
        if (slots[kO] && !layer_->delta_net) free_kept(layer_->o);
      }
      const AttentionSnapshots& whole = chunks_->front().attention;
      record_attention(pair ? whole.backward_of_pair : whole.backward, beside + d_o);
    }
    const int64_t gate_kept = slots[kGate] && slots[kQkv] ? layer_->gate : 0;
    held_[activations] -= layer_->kept(slots) - freed - layer_->x - gate_kept;
    if (!layer_->chunked) join_gradients();
    pass_on_key_gradients();
    record("tiles before attention", {{attention, layer_->qkv}, {tiles, tile_->before_attention_backward}});
    held_[activations] -= layer_->x + gate_kept;
    if (!slots[kQkv]) held_[attention] -= layer_->gate;
    close_unit();
  }

  // dq, dk and dv by heads -> one tensor by tokens. A DeltaNet's columns are one tensor already
  // (attention/column_exchange.cpp).
  void join_gradients() {
    const int64_t by_heads = layer_->qkv_heads, joined = layer_->delta_net ? 0 : by_heads;
    if (layer_->alone) {
      if (!layer_->delta_net) record("joined gradients", {{attention, 2 * layer_->qkv}});
      return;
    }
    const int64_t copy = inputs_.batch > 1 ? by_heads : 0;
    const int64_t sums = layer_->ranks_overlap ? layer_->overlap_sums + layer_->overlap_block : 0;
    record("exchange", {{attention, by_heads + layer_->ordered(by_heads)},
                        {communication, joined + copy + layer_->packed}});
    record("exchange", {{attention, by_heads + layer_->qkv}, {communication, layer_->packed + sums}});
  }

  const ForecastInputs& inputs_;
  const RecomputePlan& plan_;
  std::vector<KindBytes> kinds_;
  std::vector<size_t> kind_of_layer_;
  // Of the layer that goes on.
  const LayerBuffers* layer_ = nullptr;
  const std::vector<HeadChunkBytes>* chunks_ = nullptr;
  const TileBytes* tile_ = nullptr;
  int64_t alike_after_;  // layers, to one whose snapshots may stand for an earlier one's
  bool going_back_ = false;
  bool holds_first_x_ = false;     // beside what the first layer keeps
  std::set<int64_t> giving_keys_;  // layers whose keys later ones take
  std::set<int64_t> summed_keys_;  // those whose keys' gradients are there
  std::vector<int64_t> keeping_;   // layers that keep something
  MemoryBytes held_;
  size_t first_resident_ = 0;  // of keeping_: from it on in memory
  const char* pass_ = "";
  int64_t pass_layer_ = -1;
  UnitsInMemory units_;
  std::vector<MemorySnapshot> snapshots_;
};

}  // namespace

std::string MemorySnapshot::name() const {
  const std::string of_layer = layer < 0 ? "" : cat(" of layer ", layer);
  return cat(pass, of_layer, *pass == '\0' ? "" : ": ", phase);
}

std::vector<MemorySnapshot> memory_timeline(const ForecastInputs& inputs, bool every_layer) {
  return Timeline(inputs, every_layer).run();
}

}  // namespace trireme
