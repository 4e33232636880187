#include "trireme/engine/layer_runner.h"

#include <cmath>
#include <tuple>
#include <utility>

#include "trireme/device/memory_account.h"
#include "trireme/device/tensor_memory.h"
#include "trireme/memory/token_tiles.h"

namespace trireme {
namespace {

void keep_if_asked(const SavedSlots& keep, SavedSlot slot, const at::Tensor& tensor, Saved& saved) {
  if (!keep[slot]) return;
  saved[slot] = tensor;
  count_as(tensor, MemoryCategory::activations);
}

at::Tensor undefined_or_rows(const at::Tensor& whole, int64_t begin, int64_t count) {
  return whole.defined() ? whole.narrow(0, begin, count) : whole;
}

}  // namespace

template <typename Body>
void LayerRunner::in_tiles(int64_t tokens, const Body& body) const {
  const MemoryScope scope(MemoryCategory::tiles);
  for_tiles(tokens, tile_tokens_, body);
}

SequenceSpec LayerRunner::spec(int64_t layer, const SequenceContext& context) const {
  SequenceSpec spec;
  spec.scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  spec.kv_of_query = context.shape.heads.kv_of_query(over_.ulysses.rank());
  spec.layout = context.layout;
  spec.mask = context.masks.at(static_cast<size_t>(layer));
  return spec;
}

LayerTensors LayerRunner::tensors(const LayerWeights& weights, const SequenceContext& context) const {
  return {&config_, weights, context.rotary};
}

at::Tensor LayerRunner::project(const LayerTensors& layer, const SequenceContext& context,
                                const at::Tensor& x) {
  const int64_t N = config_.num_attention_heads + 2 * config_.num_key_value_heads, D = config_.head_dim;
  const at::Tensor qkv = at::empty({x.size(0), N, D}, x.options());
  in_tiles(x.size(0), [&](int64_t begin, int64_t count) {
    attention_input_forward(layer, x.narrow(0, begin, count), begin, qkv.narrow(0, begin, count));
  });
  return qkv.view({context.batch, context.shard_tokens, N, D});
}

at::Tensor LayerRunner::by_tokens(const SequenceContext& context, const at::Tensor& o_BShD) {
  return heads_to_seq(over_.ulysses, context.shape, o_BShD)
      .reshape({context.batch * context.shard_tokens, config_.query_width()});
}

at::Tensor LayerRunner::forward(int64_t layer, const LayerWeights& weights, const SequenceContext& context,
                                const at::Tensor& x, Saved* saved) {
  Saved nothing;
  if (saved == nullptr) return forward_keeping({}, layer, weights, context, x, nothing);
  return forward_keeping(plan_.kept_by_forward(layer), layer, weights, context, x, *saved);
}

at::Tensor LayerRunner::forward_again(int64_t layer, const LayerWeights& weights,
                                      const SequenceContext& context, Saved& saved) {
  const at::Tensor x = saved.at(kX);
  return forward_keeping(plan_.kept_by_rerun(layer), layer, weights, context, x, saved);
}

at::Tensor LayerRunner::attend(SavedSlots keep, const LayerTensors& layer, const SequenceSpec& spec,
                               const SequenceContext& context, const at::Tensor& x, Saved& saved) {
  const MemoryScope scope(MemoryCategory::attention);
  if (chunked()) {
    const at::Tensor qkv = project(layer, context, x);
    const UlyssesAttention out = ulysses_attention_forward(over_, context.shape.heads, spec, qkv);
    at::Tensor o = out.o.view({x.size(0), config_.query_width()});
    keep_if_asked(keep, kQ, qkv, saved);
    keep_if_asked(keep, kLse, out.lse, saved);
    keep_if_asked(keep, kO, o, saved);
    return o;
  }
  // On one rank o by heads is o by tokens.
  if (over_.ulysses.size() == 1) keep.reset(kOHeads);
  HeadsQkv heads = seq_to_heads_qkv(over_.ulysses, context.shape, project(layer, context, x));
  const AttentionOutput out = over_.attention.forward(heads.q, heads.k, heads.v, spec);
  keep_if_asked(keep, kQ, heads.q, saved);
  keep_if_asked(keep, kK, heads.k, saved);
  keep_if_asked(keep, kV, heads.v, saved);
  heads = {};
  at::Tensor o = by_tokens(context, out.o);
  keep_if_asked(keep, kOHeads, out.o, saved);
  keep_if_asked(keep, kLse, out.lse, saved);
  keep_if_asked(keep, kO, o, saved);
  return o;
}

at::Tensor LayerRunner::forward_keeping(SavedSlots keep, int64_t layer, const LayerWeights& weights,
                                        const SequenceContext& context, const at::Tensor& x, Saved& saved) {
  saved.resize(kSavedSlotCount);
  const LayerTensors tensors = this->tensors(weights, context);
  const int64_t tokens = x.size(0);
  keep_if_asked(keep, kX, x, saved);
  at::Tensor o = saved[kO];
  if (!o.defined()) o = attend(keep, tensors, spec(layer, context), context, x, saved);

  const MemoryScope scope(MemoryCategory::activations);
  at::Tensor y = at::empty_like(x);
  const auto tile_options = x.options().dtype(weights.qkv.scalar_type());
  if (keep[kX1]) saved[kX1] = at::empty(x.sizes(), tile_options);
  if (keep[kGateUp]) saved[kGateUp] = at::empty({tokens, config_.mlp_kept_width()}, tile_options);
  in_tiles(tokens, [&](int64_t begin, int64_t count) {
    AttentionOutputKept kept{undefined_or_rows(saved[kX1], begin, count),
                             undefined_or_rows(saved[kGateUp], begin, count)};
    attention_output_forward(tensors, x.narrow(0, begin, count), o.narrow(0, begin, count),
                             y.narrow(0, begin, count), kept.x1.defined() ? &kept : nullptr);
  });
  return y;
}

at::Tensor LayerRunner::backward(int64_t layer, const LayerWeights& weights, LayerWeights& gradients,
                                 const SequenceContext& context, Saved saved, at::Tensor dy) {
  const LayerTensors tensors = this->tensors(weights, context);
  const SequenceSpec spec = this->spec(layer, context);
  const at::Tensor x = saved.at(kX);
  const int64_t tokens = x.size(0);

  const MemoryScope scope(MemoryCategory::attention);
  at::Tensor x1 = std::exchange(saved.at(kX1), {}), gate_up = std::exchange(saved.at(kGateUp), {});
  Attended attended = this->attended(tensors, spec, context, x, std::move(saved));
  at::Tensor d_o = at::empty_like(attended.o);
  in_tiles(tokens, [&](int64_t begin, int64_t count) {
    AttentionOutputKept kept{undefined_or_rows(x1, begin, count), undefined_or_rows(gate_up, begin, count)};
    const at::Tensor rows = dy.narrow(0, begin, count);
    attention_output_backward(tensors, gradients, x.narrow(0, begin, count),
                              attended.o.narrow(0, begin, count), rows, x1.defined() ? &kept : nullptr, rows,
                              d_o.narrow(0, begin, count));
  });
  x1 = gate_up = at::Tensor();
  const at::Tensor dqkv = attend_backward(spec, context, std::move(attended), std::move(d_o));
  in_tiles(tokens, [&](int64_t begin, int64_t count) {
    attention_input_backward(tensors, gradients, x.narrow(0, begin, count), begin,
                             dqkv.narrow(0, begin, count), dy.narrow(0, begin, count));
  });
  return dy;
}

LayerRunner::Attended LayerRunner::attended(const LayerTensors& layer, const SequenceSpec& spec,
                                            const SequenceContext& context, const at::Tensor& x,
                                            Saved saved) {
  Attended result;
  result.by_heads = {saved[kOHeads], saved[kLse]};
  result.o = saved[kO];
  if (chunked()) {
    result.qkv = saved[kQ].defined() ? saved[kQ] : project(layer, context, x);
    if (result.o.defined()) return result;
    const UlyssesAttention out = ulysses_attention_forward(over_, context.shape.heads, spec, result.qkv);
    result.o = out.o.view({x.size(0), config_.query_width()});
    result.by_heads.lse = out.lse;
    return result;
  }
  result.heads = {saved[kQ], saved[kK], saved[kV]};
  if (!result.heads.q.defined())
    result.heads = seq_to_heads_qkv(over_.ulysses, context.shape, project(layer, context, x));
  saved.clear();
  if (result.o.defined()) return result;
  result.by_heads = over_.attention.forward(result.heads.q, result.heads.k, result.heads.v, spec);
  result.o = by_tokens(context, result.by_heads.o);
  return result;
}

at::Tensor LayerRunner::attend_backward(const SequenceSpec& spec, const SequenceContext& context,
                                        Attended attended, at::Tensor d_o) {
  if (chunked())
    return ulysses_attention_backward(over_, context.shape.heads, spec, by_samples(context, d_o),
                                      attended.qkv, {by_samples(context, attended.o), attended.by_heads.lse})
        .flatten(0, 1);
  AttentionOutput out = std::move(attended.by_heads);
  at::Tensor d_o_heads;
  if (out.o.defined()) {
    d_o_heads = seq_to_heads(over_.ulysses, context.shape, by_samples(context, d_o));
  } else {
    std::tie(d_o_heads, out.o) = seq_to_heads_pair(over_.ulysses, context.shape, by_samples(context, d_o),
                                                   by_samples(context, attended.o));
  }
  d_o = attended.o = at::Tensor();
  HeadsQkv& heads = attended.heads;
  const AttentionGradients local = over_.attention.backward(d_o_heads, heads.q, heads.k, heads.v, out, spec);
  heads = {};
  out = {};
  d_o_heads = at::Tensor();
  return heads_to_seq_qkv(over_.ulysses, context.shape, local).flatten(0, 1);
}

}  // namespace trireme
