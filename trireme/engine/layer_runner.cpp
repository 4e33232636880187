#include "trireme/engine/layer_runner.h"

#include <cmath>

#include "trireme/memory/token_tiles.h"

namespace trireme {
namespace {

// Order of the tensors in Saved.
enum SavedTensor : size_t { kX, kO, kLse, kQ, kK, kV, kOHeads, kX1, kGateUp };

at::Tensor undefined_or_rows(const at::Tensor& whole, int64_t begin, int64_t count) {
  return whole.defined() ? whole.narrow(0, begin, count) : whole;
}

}  // namespace

AttentionSpec LayerRunner::spec(int64_t layer) const {
  AttentionSpec spec;
  spec.scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  spec.window = config_.layer_window.at(static_cast<size_t>(layer));
  return spec;
}

LayerTensors LayerRunner::tensors(const DecoderTensors& weights, const SequenceContext& context) const {
  return {&config_, weights, context.rotary};
}

HeadsQkv LayerRunner::project(const LayerTensors& layer, const SequenceContext& context,
                              const at::Tensor& x) {
  const int64_t N = config_.num_attention_heads + 2 * config_.num_key_value_heads, D = config_.head_dim;
  const at::Tensor qkv = at::empty({x.size(0), N, D}, x.options());
  for_tiles(x.size(0), tile_tokens_, [&](int64_t begin, int64_t count) {
    attention_input_forward(layer, x.narrow(0, begin, count), begin, qkv.narrow(0, begin, count));
  });
  return seq_to_heads_qkv(ulysses_, context.shape, qkv.view({context.batch, context.shard_tokens, N, D}));
}

at::Tensor LayerRunner::forward(int64_t layer, const DecoderTensors& weights, const SequenceContext& context,
                                const at::Tensor& x, Saved* saved) {
  const LayerTensors tensors = this->tensors(weights, context);
  AttentionSpec spec = this->spec(layer);
  spec.kv_of_query = context.shape.heads.kv_of_query(ulysses_.rank());
  HeadsQkv heads = project(tensors, context, x);
  AttentionOutput attended = attention_.forward(heads.q, heads.k, heads.v, spec);
  const bool keep_all = saved != nullptr && recompute_ == Recompute::none;
  if (!keep_all) heads = {};
  const at::Tensor o =
      heads_to_seq(ulysses_, context.shape, attended.o).reshape({x.size(0), config_.query_width()});

  const int64_t tokens = x.size(0);
  at::Tensor y = at::empty_like(x);
  at::Tensor x1, gate_up;
  if (keep_all) {
    x1 = at::empty_like(x);
    gate_up = at::empty({tokens, 2 * config_.intermediate_size}, x.options());
  }
  for_tiles(tokens, tile_tokens_, [&](int64_t begin, int64_t count) {
    AttentionOutputKept kept{undefined_or_rows(x1, begin, count), undefined_or_rows(gate_up, begin, count)};
    attention_output_forward(tensors, x.narrow(0, begin, count), o.narrow(0, begin, count),
                             y.narrow(0, begin, count), keep_all ? &kept : nullptr);
  });
  if (saved != nullptr) {
    switch (recompute_) {
      case Recompute::full:
        *saved = {x};
        break;
      case Recompute::keep_attention:
        *saved = {x, o, attended.lse};
        break;
      case Recompute::none:
        *saved = {x, o, attended.lse, heads.q, heads.k, heads.v, attended.o, x1, gate_up};
        break;
    }
  }
  return y;
}

at::Tensor LayerRunner::backward(int64_t layer, const DecoderTensors& weights, DecoderTensors& gradients,
                                 const SequenceContext& context, Saved saved, at::Tensor dy) {
  const LayerTensors tensors = this->tensors(weights, context);
  AttentionSpec spec = this->spec(layer);
  spec.kv_of_query = context.shape.heads.kv_of_query(ulysses_.rank());
  const at::Tensor x = saved[kX];
  const int64_t tokens = x.size(0), H = config_.num_attention_heads, D = config_.head_dim;
  const auto by_heads = [&](const at::Tensor& flat) {
    return flat.view({context.batch, context.shard_tokens, H, D});
  };

  // What attention's backward reads, kept or made again.
  HeadsQkv heads;
  AttentionOutput attended;
  at::Tensor o, x1, gate_up;
  if (recompute_ == Recompute::none) {
    heads = {saved[kQ], saved[kK], saved[kV]};
    attended = {saved[kOHeads], saved[kLse]};
    o = saved[kO];
    x1 = saved[kX1];
    gate_up = saved[kGateUp];
  } else {
    heads = project(tensors, context, x);
    if (recompute_ == Recompute::keep_attention) {
      o = saved[kO];
      attended.lse = saved[kLse];
    } else {
      attended = attention_.forward(heads.q, heads.k, heads.v, spec);
      o = heads_to_seq(ulysses_, context.shape, attended.o).reshape({tokens, config_.query_width()});
    }
  }
  saved.clear();

  at::Tensor d_o = at::empty_like(o);
  for_tiles(tokens, tile_tokens_, [&](int64_t begin, int64_t count) {
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
  for_tiles(tokens, tile_tokens_, [&](int64_t begin, int64_t count) {
    attention_input_backward(tensors, gradients, x.narrow(0, begin, count), begin,
                             dqkv.narrow(0, begin, count), dy.narrow(0, begin, count));
  });
  return dy;
}

}  // namespace trireme
