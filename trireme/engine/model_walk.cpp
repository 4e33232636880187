#include "trireme/engine/model_walk.h"

#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/device/memory_account.h"
#include "trireme/device/tensor_memory.h"
#include "trireme/model/rotary.h"

namespace trireme {

ModelWalk::ModelWalk(const ModelConfig& config, const ModelLayout& layout, Group& ulysses,
                     LayerRunner& layers, ParameterStore& parameters, const WalkSettings& settings)
    : config_(config),
      layout_(layout),
      ulysses_(ulysses),
      layers_(layers),
      parameters_(parameters),
      settings_(settings) {
  TRIREME_ASSERT(layers.plan().layers == config.num_hidden_layers, "the plan is for ", layers.plan().layers,
                 " layers, the model has ", config.num_hidden_layers);
}

void ModelWalk::check(const TokenBatch& batch) const {
  const SequenceLayout& layout = batch.layout;
  TRIREME_ASSERT(layout.ranks == ulysses_.size(), "the batch is cut for ", layout.ranks,
                 " ranks, the group has ", ulysses_.size());
  TRIREME_ASSERT(batch.tokens.dim() == 2 && batch.tokens.size(1) == layout.size(ulysses_.rank()) &&
                     batch.targets.sizes() == batch.tokens.sizes(),
                 "tokens ", batch.tokens.sizes(), " targets ", batch.targets.sizes());
  if (settings_.strict_divisible && !layout.divisible()) {
    const int64_t below = layout.tokens / layout.ranks * layout.ranks;
    throw ConfigError(cat("sequence length ", layout.tokens, " is not divisible by ulysses degree ",
                          layout.ranks,
                          "; the nearest lengths that are: ", below > 0 ? cat(below, " and ") : std::string(),
                          below + layout.ranks, " (without --strict_divisible any length works)"));
  }
  if (batch.tokens.numel() == 0) return;
  const auto [least, most] = at::aminmax(batch.tokens);
  if (least.item<int64_t>() < 0 || most.item<int64_t>() >= config_.vocab_size)
    throw DataError(cat("token id ", least.item<int64_t>() < 0 ? least.item<int64_t>() : most.item<int64_t>(),
                        " is outside the model's vocabulary of ", config_.vocab_size,
                        "; the data were made with another tokenizer"));
  if (batch.targets.max().item<int64_t>() >= config_.vocab_size)
    throw DataError(cat("target id ", batch.targets.max().item<int64_t>(),
                        " is outside the model's vocabulary of ", config_.vocab_size));
}

SequenceContext ModelWalk::context_of(const TokenBatch& batch) const {
  SequenceContext context;
  context.batch = batch.tokens.size(0);
  context.shard_tokens = batch.tokens.size(1);
  context.shape.layout = batch.layout;
  context.shape.heads =
      share_heads(config_.num_attention_heads, config_.num_key_value_heads, ulysses_.size());
  context.rotary = make_rotary_table(config_, batch.layout.tokens, batch.layout.begin(ulysses_.rank()),
                                     context.shard_tokens, settings_.device);
  context.storage = settings_.storage;
  return context;
}

DecoderTensors ModelWalk::layer_tensors(const at::Tensor& flat, int64_t layer) const {
  return decoder_tensors(flat, layout_.units[static_cast<size_t>(layout_.layer_unit(layer))], config_);
}

HeadTensors ModelWalk::head_tensors(const at::Tensor& head_flat, const at::Tensor& embedding_flat) const {
  const UnitSpec& head = layout_.units[static_cast<size_t>(layout_.head_unit())];
  const UnitSpec& embedding = layout_.units[static_cast<size_t>(layout_.embedding_unit())];
  return {parameter_view(head_flat, head.find("norm.weight")),
          layout_.tied ? parameter_view(embedding_flat, embedding.find("embed_tokens.weight"))
                       : parameter_view(head_flat, head.find("lm_head.weight"))};
}

at::Tensor ModelWalk::embed(const at::Tensor& tokens, UnitOrder& order) {
  const int unit = layout_.embedding_unit();
  const at::Tensor flat = order.gather(unit);
  const MemoryScope scope(MemoryCategory::activations);
  at::Tensor x = parameter_view(flat, layout_.units[static_cast<size_t>(unit)].find("embed_tokens.weight"))
                     .index_select(0, tokens)
                     .to(settings_.storage);
  order.release(unit);
  return x;
}

at::Tensor ModelWalk::forward(
    const TokenBatch& batch,
    const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) {
  check(batch);
  const SequenceContext context = context_of(batch);
  UnitOrder order(parameters_, forward_order(layout_));
  at::Tensor x = embed(batch.tokens.to(settings_.device).flatten(), order);
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const int unit = layout_.layer_unit(layer);
    x = layers_.forward(layer, layer_tensors(order.gather(unit), layer), context, x, nullptr);
    order.release(unit);
  }
  const int head = layout_.head_unit(), embedding = layout_.embedding_unit();
  const at::Tensor head_flat = order.gather(head);
  const HeadTensors weights = head_tensors(head_flat, layout_.tied ? order.gather(embedding) : at::Tensor());
  const at::Tensor targets = batch.targets.to(settings_.device).flatten().contiguous();
  at::Tensor loss;
  {
    const MemoryScope scope(MemoryCategory::tiles);
    loss = head_loss(weights, head_options(), x, targets, on_logits);
    count_as(loss, MemoryCategory::other);
  }
  order.release(head);
  if (layout_.tied) order.release(embedding);
  return loss.view(batch.tokens.sizes());
}

void ModelWalk::add_embedding_gradient(const at::Tensor& flat_gradient, at::Tensor tokens, at::Tensor dx) {
  const MemoryScope scope(MemoryCategory::activations);
  at::Tensor rows = parameter_view(
      flat_gradient,
      layout_.units[static_cast<size_t>(layout_.embedding_unit())].find("embed_tokens.weight"));
  if (config_.pad_token_id) {
    // As in Hugging Face: looking up the padding token teaches its row nothing.
    const at::Tensor kept = tokens.ne(*config_.pad_token_id).nonzero().squeeze(1);
    if (kept.size(0) < tokens.size(0)) {
      tokens = tokens.index_select(0, kept);
      dx = dx.index_select(0, kept);
    }
  }
  rows.index_add_(0, tokens, dx.to(at::kFloat));
}

at::Tensor ModelWalk::head_backward(const at::Tensor& targets, double scale, at::Tensor& x, UnitOrder& order,
                                    GradientStore& gradients) {
  const int head = layout_.head_unit(), embedding = layout_.embedding_unit();
  const at::Tensor head_flat = order.gather(head);
  const HeadTensors weights = head_tensors(head_flat, layout_.tied ? order.gather(embedding) : at::Tensor());
  HeadTensors head_gradients =
      head_tensors(gradients.open(head), layout_.tied ? gradients.open(embedding) : at::Tensor());
  at::Tensor loss;
  {
    const MemoryScope scope(MemoryCategory::tiles);
    loss = head_loss_and_gradient(weights, head_options(), x, targets, scale, head_gradients);
    count_as(loss, MemoryCategory::other);
  }
  order.release(head);
  if (layout_.tied) order.release(embedding);
  return loss;
}

at::Tensor ModelWalk::group_backward(int64_t begin, int64_t end, const SequenceContext& context,
                                     at::Tensor dx, UnitOrder& order, GradientStore& gradients,
                                     ActivationStore& activations) {
  // From the last, as stores expect that bring back what they put away.
  std::vector<Saved> saved(static_cast<size_t>(end - begin));
  const auto of = [&](int64_t layer) -> Saved& { return saved[static_cast<size_t>(layer - begin)]; };
  for (int64_t layer = end - 1; layer >= begin; --layer) of(layer) = activations.take(layer);

  for (int64_t layer = begin; layer + 1 < end; ++layer) {
    const int unit = layout_.layer_unit(layer);
    of(layer + 1).at(kX) =
        layers_.forward_again(layer, layer_tensors(order.gather(unit), layer), context, of(layer));
    order.release(unit);
  }
  for (int64_t layer = end - 1; layer >= begin; --layer) {
    const int unit = layout_.layer_unit(layer);
    DecoderTensors layer_gradients = layer_tensors(gradients.open(unit), layer);
    dx = layers_.backward(layer, layer_tensors(order.gather(unit), layer), layer_gradients, context,
                          std::move(of(layer)), dx);
    order.release(unit);
    layer_gradients = {};
    gradients.close(unit);
  }
  return dx;
}

double ModelWalk::forward_backward(const TokenBatch& batch, double scale, GradientStore& gradients,
                                   ActivationStore& activations) {
  check(batch);
  const SequenceContext context = context_of(batch);
  const RecomputePlan& plan = layers_.plan();
  UnitOrder order(parameters_, training_order(layout_, plan));
  const at::Tensor tokens = batch.tokens.to(settings_.device).flatten();
  at::Tensor x = embed(tokens, order);
  for (int64_t layer = 0; layer < plan.layers; ++layer) {
    const int unit = layout_.layer_unit(layer);
    Saved saved;
    x = layers_.forward(layer, layer_tensors(order.gather(unit), layer), context, x, &saved);
    order.release(unit);
    activations.put(layer, std::move(saved));
  }

  const at::Tensor loss =
      head_backward(batch.targets.to(settings_.device).flatten().contiguous(), scale, x, order, gradients);
  gradients.close(layout_.head_unit());
  at::Tensor dx = std::move(x);
  for (int64_t end = plan.layers; end > 0;) {
    const int64_t begin = plan.group_begin(end - 1);
    dx = group_backward(begin, end, context, dx, order, gradients, activations);
    end = begin;
  }

  // A tied matrix is open since the head; it closes here, after its second use.
  const int embedding = layout_.embedding_unit();
  add_embedding_gradient(gradients.open(embedding), tokens, dx);
  gradients.close(embedding);
  return loss.sum(at::kDouble).item<double>();
}

}  // namespace trireme
