#include "trireme/engine/model_walk.h"

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/model/rotary.h"

namespace trireme {

ModelWalk::ModelWalk(const ModelConfig& config, const ModelLayout& layout, Group& ulysses,
                     LayerRunner& layers, ParameterStore& parameters, const WalkSettings& settings)
    : config_(config),
      layout_(layout),
      ulysses_(ulysses),
      layers_(layers),
      parameters_(parameters),
      settings_(settings) {}

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

at::Tensor ModelWalk::embed(const at::Tensor& tokens) {
  const int unit = layout_.embedding_unit();
  const at::Tensor matrix = parameter_view(
      parameters_.gather(unit), layout_.units[static_cast<size_t>(unit)].find("embed_tokens.weight"));
  at::Tensor x = matrix.index_select(0, tokens).to(settings_.storage);
  parameters_.release(unit);
  return x;
}

at::Tensor ModelWalk::forward(
    const TokenBatch& batch,
    const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) {
  check(batch);
  const SequenceContext context = context_of(batch);
  at::Tensor x = embed(batch.tokens.to(settings_.device).flatten());
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const int unit = layout_.layer_unit(layer);
    x = layers_.forward(layer, layer_tensors(parameters_.gather(unit), layer), context, x, nullptr);
    parameters_.release(unit);
  }
  const int head = layout_.head_unit(), embedding = layout_.embedding_unit();
  const HeadTensors weights =
      head_tensors(parameters_.gather(head), layout_.tied ? parameters_.gather(embedding) : at::Tensor());
  at::Tensor loss = head_loss(weights, head_options(), x,
                              batch.targets.to(settings_.device).flatten().contiguous(), on_logits);
  parameters_.release(head);
  if (layout_.tied) parameters_.release(embedding);
  return loss.view(batch.tokens.sizes());
}

void ModelWalk::add_embedding_gradient(const at::Tensor& flat_gradient, at::Tensor tokens, at::Tensor dx) {
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

double ModelWalk::forward_backward(const TokenBatch& batch, double scale, GradientStore& gradients,
                                   ActivationStore& activations) {
  check(batch);
  const SequenceContext context = context_of(batch);
  const at::Tensor tokens = batch.tokens.to(settings_.device).flatten();
  at::Tensor x = embed(tokens);
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const int unit = layout_.layer_unit(layer);
    Saved saved;
    x = layers_.forward(layer, layer_tensors(parameters_.gather(unit), layer), context, x, &saved);
    parameters_.release(unit);
    activations.put(layer, std::move(saved));
  }

  const int head = layout_.head_unit(), embedding = layout_.embedding_unit();
  const HeadTensors weights =
      head_tensors(parameters_.gather(head), layout_.tied ? parameters_.gather(embedding) : at::Tensor());
  HeadTensors head_gradients =
      head_tensors(gradients.open(head), layout_.tied ? gradients.open(embedding) : at::Tensor());
  const at::Tensor loss = head_loss_and_gradient(weights, head_options(), x,
                                                 batch.targets.to(settings_.device).flatten().contiguous(),
                                                 scale, head_gradients);
  gradients.close(head);
  parameters_.release(head);
  if (layout_.tied) parameters_.release(embedding);
  at::Tensor dx = std::move(x);

  for (int64_t layer = config_.num_hidden_layers - 1; layer >= 0; --layer) {
    const int unit = layout_.layer_unit(layer);
    DecoderTensors layer_gradients = layer_tensors(gradients.open(unit), layer);
    dx = layers_.backward(layer, layer_tensors(parameters_.gather(unit), layer), layer_gradients, context,
                          activations.take(layer), dx);
    parameters_.release(unit);
    gradients.close(unit);
  }
  // A tied matrix is open since the head; it closes here, after its second use.
  add_embedding_gradient(gradients.open(embedding), tokens, dx);
  gradients.close(embedding);
  return loss.sum(at::kDouble).item<double>();
}

}  // namespace trireme
