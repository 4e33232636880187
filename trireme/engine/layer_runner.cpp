#include "trireme/engine/layer_runner.h"

#include <cmath>

#include "trireme/device/memory_account.h"
#include "trireme/device/tensor_memory.h"
#include "trireme/memory/token_tiles.h"

namespace trireme {
namespace {

at::Tensor undefined_or_rows(const at::Tensor& whole, int64_t begin, int64_t count) {
  return whole.defined() ? whole.narrow(0, begin, count) : whole;
}

}  // namespace

template <typename Body>
void LayerRunner::in_tiles(int64_t tokens, const Body& body) const {
  const MemoryScope scope(MemoryCategory::tiles);
  for_tiles(tokens, tile_tokens_, body);
}

AttentionSpec LayerRunner::spec(int64_t layer, const SequenceContext& context) const {
  AttentionSpec spec;
  spec.scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  spec.window = config_.layer_window.at(static_cast<size_t>(layer));
  spec.kv_of_query = context.shape.heads.kv_of_query(ulysses_.rank());
  return spec;
}

LayerTensors LayerRunner::tensors(const DecoderTensors& weights, const SequenceContext& context) const {
  return {&config_, weights, context.rotary};
}

HeadsQkv LayerRunner::project(const LayerTensors& layer, const SequenceContext& context,
                              const at::Tensor& x) {
  const int64_t N = config_.num_attention_heads + 2 * config_.num_key_value_heads, D = config_.head_dim;
  const at::Tensor qkv = at::empty({x.size(0), N, D}, x.options());
  in_tiles(x.size(0), [&](int64_t begin, int64_t count) {
    attention_input_forward(layer, x.narrow(0, begin, count), begin, qkv.narrow(0, begin, count));
  });
  return seq_to_heads_qkv(ulysses_, context.shape, qkv.view({context.batch, context.shard_tokens, N, D}));
}

at::Tensor LayerRunner::by_tokens(const SequenceContext& context, const at::Tensor& o_BShD) {
  return heads_to_seq(ulysses_, context.shape, o_BShD)
      .reshape({context.batch * context.shard_tokens, config_.query_width()});
}

at::Tensor LayerRunner::forward(int64_t layer, const DecoderTensors& weights, const SequenceContext& context,
                                const at::Tensor& x, Saved* saved) {
  Saved nothing;
  if (saved == nullptr) return forward_keeping({}, layer, weights, context, x, nothing);
  return forward_keeping(plan_.kept_by_forward(layer), layer, weights, context, x, *saved);
}

at::Tensor LayerRunner::forward_again(int64_t layer, const DecoderTensors& weights,
                                      const SequenceContext& context, Saved& saved) {
  const at::Tensor x = saved.at(kX);
  return forward_keeping(plan_.kept_by_rerun(layer), layer, weights, context, x, saved);
}

at::Tensor LayerRunner::forward_keeping(SavedSlots keep, int64_t layer, const DecoderTensors& weights,
                                        const SequenceContext& context, const at::Tensor& x, Saved& saved) {
  saved.resize(kSavedSlotCount);
  // On one rank o by heads is o by tokens.
  if (ulysses_.size() == 1) keep.reset(kOHeads);
  const auto keep_if_asked = [&](SavedSlot slot, const at::Tensor& tensor) {
    if (!keep[slot]) return;
    saved[slot] = tensor;
    count_as(tensor, MemoryCategory::activations);
  };
  const LayerTensors tensors = this->tensors(weights, context);
  const int64_t tokens = x.size(0);
  keep_if_asked(kX, x);
  at::Tensor o = saved[kO];
  if (!o.defined()) {
    const MemoryScope scope(MemoryCategory::attention);
    HeadsQkv heads = project(tensors, context, x);
    AttentionOutput attended = attention_.forward(heads.q, heads.k, heads.v, spec(layer, context));
    keep_if_asked(kQ, heads.q);
    keep_if_asked(kK, heads.k);
    keep_if_asked(kV, heads.v);
    heads = {};
    o = by_tokens(context, attended.o);
    keep_if_asked(kOHeads, attended.o);
    keep_if_asked(kLse, attended.lse);
    keep_if_asked(kO, o);
  }

  const MemoryScope scope(MemoryCategory::activations);
  at::Tensor y = at::empty_like(x);
  const auto tile_options = x.options().dtype(weights.qkv.scalar_type());
  if (keep[kX1]) saved[kX1] = at::empty(x.sizes(), tile_options);
  if (keep[kGateUp]) saved[kGateUp] = at::empty({tokens, 2 * config_.intermediate_size}, tile_options);
  in_tiles(tokens, [&](int64_t begin, int64_t count) {
    AttentionOutputKept kept{undefined_or_rows(saved[kX1], begin, count),
                             undefined_or_rows(saved[kGateUp], begin, count)};
    attention_output_forward(tensors, x.narrow(0, begin, count), o.narrow(0, begin, count),
                             y.narrow(0, begin, count), kept.x1.defined() ? &kept : nullptr);
  });
  return y;
}

at::Tensor LayerRunner::backward(int64_t layer, const DecoderTensors& weights, DecoderTensors& gradients,
                                 const SequenceContext& context, Saved saved, at::Tensor dy) {
  const LayerTensors tensors = this->tensors(weights, context);
  const AttentionSpec spec = this->spec(layer, context);
  const at::Tensor x = saved.at(kX);
  const int64_t tokens = x.size(0), H = config_.num_attention_heads, D = config_.head_dim;
  const auto by_heads = [&](const at::Tensor& flat) {
    return flat.view({context.batch, context.shard_tokens, H, D});
  };

  const MemoryScope scope(MemoryCategory::attention);
  // What attention's backward reads, kept or made again.
  HeadsQkv heads{saved[kQ], saved[kK], saved[kV]};
  if (!heads.q.defined()) heads = project(tensors, context, x);
  AttentionOutput attended{saved[kOHeads], saved[kLse]};
  at::Tensor o = saved[kO], x1 = saved[kX1], gate_up = saved[kGateUp];
  saved.clear();
  if (!o.defined()) {
    attended = attention_.forward(heads.q, heads.k, heads.v, spec);
    o = by_tokens(context, attended.o);
  }

  at::Tensor d_o = at::empty_like(o);
  in_tiles(tokens, [&](int64_t begin, int64_t count) {
    AttentionOutputKept kept{undefined_or_rows(x1, begin, count), undefined_or_rows(gate_up, begin, count)};
    const at::Tensor rows = dy.narrow(0, begin, count);
    attention_output_backward(tensors, gradients, x.narrow(0, begin, count), o.narrow(0, begin, count), rows,
                              x1.defined() ? &kept : nullptr, rows, d_o.narrow(0, begin, count));
  });
  x1 = gate_up = at::Tensor();

  at::Tensor d_o_heads;
  if (attended.o.defined()) {
    d_o_heads = seq_to_heads(ulysses_, context.shape, by_heads(d_o));
  } else {
    std::tie(d_o_heads, attended.o) = seq_to_heads_pair(ulysses_, context.shape, by_heads(d_o), by_heads(o));
  }
  d_o = o = at::Tensor();
  AttentionGradients local = attention_.backward(d_o_heads, heads.q, heads.k, heads.v, attended, spec);
  heads = {};
  attended = {};
  d_o_heads = at::Tensor();
  const at::Tensor dqkv = heads_to_seq_qkv(ulysses_, context.shape, local).flatten(0, 1);
  local = {};
  in_tiles(tokens, [&](int64_t begin, int64_t count) {
    attention_input_backward(tensors, gradients, x.narrow(0, begin, count), begin,
                             dqkv.narrow(0, begin, count), dy.narrow(0, begin, count));
  });
  return dy;
}

}  // namespace trireme
