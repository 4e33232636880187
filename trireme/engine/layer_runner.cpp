#include "trireme/engine/layer_runner.h"

#include <algorithm>
#include <utility>

#include "trireme/device/memory_account.h"
#include "trireme/device/tensor_memory.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/kernels/token_tiles.h"

namespace trireme {
namespace {

void keep_if_asked(const SavedSlots& keep, SavedSlot slot, const at::Tensor& tensor, Saved& saved) {
  if (!keep[slot]) return;
  saved[slot] = tensor;
  count_as(tensor, MemoryCategory::activations);
}

// [B, s, H, D] -> [B * s, H D]
at::Tensor by_tokens(const at::Tensor& o_BsHD) {
  return o_BsHD.view({o_BsHD.size(0) * o_BsHD.size(1), o_BsHD.size(2) * o_BsHD.size(3)});
}

at::Tensor keys_and_values(const AttentionHeads& heads, const at::Tensor& qkv_RND) {
  return qkv_RND.narrow(1, heads.query, 2 * heads.key_value);
}

// sum += more, whose dtypes may differ: on a CPU ATen widens what it adds, of all rows at once.
void add_in_blocks(const at::Tensor& sum_RKD, const at::Tensor& more_RKD) {
  constexpr int64_t kBlock_elements = int64_t{1} << 18;
  const int64_t rows = sum_RKD.size(0);
  const int64_t block =
      sum_RKD.is_cpu() ? std::max<int64_t>(1, kBlock_elements / (sum_RKD.size(1) * sum_RKD.size(2))) : rows;
  const MemoryScope scope(MemoryCategory::tiles);
  for_tiles(rows, block, [&](int64_t begin, int64_t count) {
    sum_RKD.narrow(0, begin, count).add_(more_RKD.narrow(0, begin, count));
  });
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

LayerRunner::LayerPass LayerRunner::pass_of(int64_t layer, const UnitWeights& weights,
                                            const SequenceContext& context) const {
  const auto index = static_cast<size_t>(layer);
  LayerPass pass{
      {weights, context.rotary.at(index), config_.heads_of(layer),
       config_.has_delta_net(layer) ? &*config_.delta_net : nullptr, config_.mlp_kept_width_of(layer)},
      context,
      *context.masks.at(index),
      config_.has_full_heads(layer) ? *mixing_.full_attention : mixing_.attention};
  if (config_.layer_input_width > 0) pass.tensors.input_RP = context.across->inputs_LRP.select(0, layer);
  if (config_.shares_keys(layer)) {
    pass.keys = &context.across->keys.at(config_.layer_of_keys(layer));
    pass.tensors.shared_kv_RKD = pass.keys->kv_RKD;
  } else if (config_.gives_keys(layer)) {
    pass.keys = &context.across->keys[layer];
  }
  return pass;
}

Projection LayerRunner::project(const LayerPass& pass, const at::Tensor& x) {
  const LayerTensors& layer = pass.tensors;
  const bool delta = layer.delta_net != nullptr;
  const int64_t N = delta ? 1 : layer.heads.packed();
  const int64_t D = delta ? layer.delta_net->heads.columns() : layer.heads.width;
  const int64_t A = delta ? layer.delta_net->heads.output_columns() : layer.heads.gate_width();
  const at::Tensor qkv = at::empty({x.size(0), N, D}, x.options());
  const at::Tensor gate = A > 0 ? at::empty({x.size(0), A}, x.options()) : at::Tensor();
  in_tiles(x.size(0), [&](int64_t begin, int64_t count) {
    layer_->before_attention_forward(layer, x.narrow(0, begin, count), begin, qkv.narrow(0, begin, count),
                                     undefined_or_rows(gate, begin, count));
  });
  if (pass.keys != nullptr && !pass.keys->kv_RKD.defined()) {
    const MemoryScope scope(MemoryCategory::activations);
    pass.keys->kv_RKD = keys_and_values(layer.heads, qkv).clone(at::MemoryFormat::Contiguous);
  }
  return {qkv.view({pass.context.batch, pass.context.shard_tokens, N, D}), gate};
}

at::Tensor LayerRunner::exchange(const LayerPass& pass, at::Tensor qkv_BsND) {
  if (pass.tensors.delta_net != nullptr) return mixing_.delta_net->exchange(qkv_BsND, delta_inputs(pass));
  return pass.attention.exchange_qkv(std::move(qkv_BsND), pass.mask);
}

ShardedOutput LayerRunner::mix(const LayerPass& pass, at::Tensor qkv) {
  if (pass.tensors.delta_net != nullptr)
    return {mixing_.delta_net->forward(std::move(qkv), delta_inputs(pass)), {}, {}};
  return pass.attention.forward(std::move(qkv), pass.mask);
}

at::Tensor LayerRunner::mix_backward(const LayerPass& pass, UnitGradients& gradients, at::Tensor do_BsHD,
                                     at::Tensor qkv, ShardedOutput output) {
  if (pass.tensors.delta_net == nullptr)
    return pass.attention.backward(std::move(do_BsHD), std::move(qkv), std::move(output), pass.mask);
  output = {};
  return mixing_.delta_net->backward(std::move(do_BsHD), std::move(qkv), delta_inputs(pass), gradients);
}

void LayerRunner::pass_on_key_gradients(const LayerPass& pass, const at::Tensor& dqkv_RND) {
  if (pass.keys == nullptr) return;
  const at::Tensor dkv = keys_and_values(pass.tensors.heads, dqkv_RND);
  at::Tensor& sum = pass.keys->dkv_RKD;
  if (pass.tensors.heads.share_keys) {
    if (sum.defined()) {
      add_in_blocks(sum, dkv);
      return;
    }
    const MemoryScope scope(MemoryCategory::activations);
    sum = at::empty(dkv.sizes(), dkv.options().dtype(compute_dtype(dkv)));
    sum.copy_(dkv);
    return;
  }
  if (sum.defined()) add_in_blocks(dkv, sum);
  *pass.keys = {};
}

at::Tensor LayerRunner::forward(int64_t layer, const UnitWeights& weights, const SequenceContext& context,
                                const at::Tensor& x, Saved* saved) {
  Saved nothing;
  if (saved == nullptr) return forward_keeping({}, layer, weights, context, x, nothing);
  return forward_keeping(plan_.kept_by_forward(layer), layer, weights, context, x, *saved);
}

at::Tensor LayerRunner::forward_again(int64_t layer, const UnitWeights& weights,
                                      const SequenceContext& context, Saved& saved) {
  const at::Tensor x = saved.at(kX);
  return forward_keeping(plan_.kept_by_rerun(layer), layer, weights, context, x, saved);
}

at::Tensor LayerRunner::attend(SavedSlots keep, const LayerPass& pass, const at::Tensor& x, Saved& saved,
                               at::Tensor& gate) {
  const MemoryScope scope(MemoryCategory::attention);
  Projection projected = project(pass, x);
  gate = projected.gate;
  at::Tensor qkv = exchange(pass, std::exchange(projected.qkv, {}));
  if (keep[kQkv]) saved[kQkv] = qkv;
  if (keep[kGate]) saved[kGate] = gate;
  ShardedOutput output = mix(pass, std::move(qkv));
  for (const SavedSlot slot : {kQkv, kGate}) count_as(saved[slot], MemoryCategory::activations);
  keep_if_asked(keep, kOHeads, output.o_BShD, saved);
  keep_if_asked(keep, kLse, output.lse_BhS, saved);
  keep_if_asked(keep, kO, output.o_BsHD, saved);
  return output.o_BsHD;
}

at::Tensor LayerRunner::forward_keeping(SavedSlots keep, int64_t layer, const UnitWeights& weights,
                                        const SequenceContext& context, const at::Tensor& x, Saved& saved) {
  saved.resize(kSavedSlotCount);
  const LayerPass pass = pass_of(layer, weights, context);
  const LayerTensors& tensors = pass.tensors;
  const int64_t tokens = x.size(0);
  keep_if_asked(keep, kX, x, saved);
  at::Tensor o_BsHD = saved[kO], gate = saved[kGate];
  if (!o_BsHD.defined()) o_BsHD = attend(keep, pass, x, saved, gate);
  const at::Tensor o = by_tokens(o_BsHD);

  const MemoryScope scope(MemoryCategory::activations);
  at::Tensor y = at::empty_like(x);
  const auto tile_options = x.options().dtype(weights.dtype());
  if (keep[kX1]) saved[kX1] = at::empty(x.sizes(), tile_options);
  if (keep[kGateUp]) saved[kGateUp] = at::empty({tokens, tensors.mlp_kept_width}, tile_options);
  in_tiles(tokens, [&](int64_t begin, int64_t count) {
    KeptAfterAttention kept{undefined_or_rows(saved[kX1], begin, count),
                            undefined_or_rows(saved[kGateUp], begin, count)};
    layer_->after_attention_forward(tensors, x.narrow(0, begin, count), begin, o.narrow(0, begin, count),
                                    undefined_or_rows(gate, begin, count), y.narrow(0, begin, count),
                                    kept.x1.defined() ? &kept : nullptr);
  });
  return y;
}

at::Tensor LayerRunner::backward(int64_t layer, const UnitWeights& weights, UnitGradients& gradients,
                                 const SequenceContext& context, Saved saved, at::Tensor dy) {
  const LayerPass pass = pass_of(layer, weights, context);
  const LayerTensors& tensors = pass.tensors;
  const at::Tensor x = saved.at(kX);
  const int64_t tokens = x.size(0);

  const MemoryScope scope(MemoryCategory::attention);
  at::Tensor x1 = saved.at(kX1), gate_up = saved.at(kGateUp), qkv = saved.at(kQkv), gate = saved.at(kGate);
  ShardedOutput output{saved.at(kO), saved.at(kLse), saved.at(kOHeads)};
  saved.clear();
  if (!qkv.defined()) {
    gate = at::Tensor();  // of the second forward
    Projection projected = project(pass, x);
    gate = projected.gate;
    qkv = exchange(pass, std::exchange(projected.qkv, {}));
  }
  if (!output.o_BsHD.defined()) output = mix(pass, qkv);
  at::Tensor do_BsHD = at::empty_like(output.o_BsHD);
  in_tiles(tokens, [&](int64_t begin, int64_t count) {
    KeptAfterAttention kept{undefined_or_rows(x1, begin, count), undefined_or_rows(gate_up, begin, count)};
    layer_->after_attention_backward(tensors, gradients, x.narrow(0, begin, count), begin,
                                     by_tokens(output.o_BsHD).narrow(0, begin, count),
                                     undefined_or_rows(gate, begin, count), dy.narrow(0, begin, count),
                                     x1.defined() ? &kept : nullptr,
                                     by_tokens(do_BsHD).narrow(0, begin, count));
  });
  x1 = gate_up = at::Tensor();
  const at::Tensor dqkv =
      mix_backward(pass, gradients, std::move(do_BsHD), std::move(qkv), std::move(output)).flatten(0, 1);
  pass_on_key_gradients(pass, dqkv);
  in_tiles(tokens, [&](int64_t begin, int64_t count) {
    layer_->before_attention_backward(tensors, gradients, x.narrow(0, begin, count), begin,
                                      dqkv.narrow(0, begin, count), undefined_or_rows(gate, begin, count),
                                      dy.narrow(0, begin, count));
  });
  return dy;
}

}  // namespace trireme
