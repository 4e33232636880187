#include "trireme/engine/model_executor.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/sample_layout.h"
#include "trireme/data/token_positions.h"
#include "trireme/data/tokenizer_vocabulary.h"
#include "trireme/device/memory_account.h"
#include "trireme/device/tensor_memory.h"
#include "trireme/engine/make_forecast_inputs.h"
#include "trireme/kernels/document_begins.h"
#include "trireme/kernels/token_tiles.h"
#include "trireme/model/model_family.h"
#include "trireme/model/rotary.h"

namespace trireme {
namespace {

int64_t longest_document_tokens(const TokenBatch& batch) {
  int64_t longest = batch.documents.empty() ? batch.layout.tokens : 0;
  for (const Documents& documents : batch.documents) longest = std::max(longest, documents.longest());
  return longest;
}

}  // namespace

ModelExecutor::ModelExecutor(const ModelConfig& config, const ModelLayout& layout, const Mesh& mesh,
                             LayerRunner& layers, ParameterStore& parameters,
                             const ExecutorSettings& settings, ParameterStore* adapters)
    : config_(config),
      layout_(layout),
      end_units_(model_sizes(config, layout).end_units()),
      embedding_(config.family->embedding(config)),
      layer_inputs_(layout.layer_inputs ? config.family->layer_inputs(config) : nullptr),
      head_(config.family->head(config)),
      mesh_(mesh),
      activity_(mesh.all->activity()),
      layers_(layers),
      parameters_(parameters),
      adapters_(adapters),
      settings_(settings) {
  TRIREME_ASSERT(layout.adapted() == (adapters != nullptr),
                 "a store of adapters goes with a layout that has some");
  TRIREME_ASSERT(layers.plan().layers == config.num_hidden_layers, "the plan is for ", layers.plan().layers,
                 " layers, the model has ", config.num_hidden_layers);
}

void ModelExecutor::check(const TokenBatch& batch) const {
  const SampleLayout& layout = batch.layout;
  TRIREME_ASSERT(layout.ulysses == mesh_.ulysses->size() && layout.ring == mesh_.ring->size(),
                 "the batch is cut for ", layout.ulysses, " x ", layout.ring, " ranks, the mesh has ",
                 mesh_.ulysses->size(), " x ", mesh_.ring->size());
  TRIREME_ASSERT(batch.tokens.dim() == 2 && batch.tokens.size(1) == layout.size(mesh_.sp->rank()) &&
                     batch.targets.sizes() == batch.tokens.sizes(),
                 "tokens ", batch.tokens.sizes(), " targets ", batch.targets.sizes());
  TRIREME_ASSERT(
      batch.documents.empty() || static_cast<int64_t>(batch.documents.size()) == batch.tokens.size(0),
      "documents of ", batch.documents.size(), " samples in a batch of ", batch.tokens.size(0));
  check_a_token_for_each_rank(layout);
  if (settings_.strict_divisible) check_divisible(layout);
  check_positions(config_, longest_document_tokens(batch));
  if (batch.tokens.numel() == 0) return;
  const auto [least, most] = at::aminmax(batch.tokens);
  if (least.item<int64_t>() < 0 || most.item<int64_t>() >= config_.vocab_size)
    throw DataError(cat("token id ", least.item<int64_t>() < 0 ? least.item<int64_t>() : most.item<int64_t>(),
                        " is outside the model's vocabulary of ", config_.vocab_size,
                        "; the data were made with another tokenizer, or ", kTokensWithoutRows));
  if (batch.targets.max().item<int64_t>() >= config_.vocab_size)
    throw DataError(cat("target id ", batch.targets.max().item<int64_t>(),
                        " is outside the model's vocabulary of ", config_.vocab_size));
}

template <typename Body>
void ModelExecutor::in_tiles(int64_t tokens, const Body& body) const {
  const MemoryScope scope(MemoryCategory::tiles);
  for_tiles(tokens, settings_.logits_tile_tokens, body);
}

// Layers with the same mask share one description, made once a step.
std::vector<std::shared_ptr<const SequenceMask>> ModelExecutor::masks_of(const TokenBatch& batch) const {
  std::vector<LayerMask> known;
  std::vector<std::shared_ptr<const SequenceMask>> made, masks;
  for (const int64_t window : config_.layer_window) {
    const LayerMask mask{config_.causality, window, settings_.sparse};
    const auto index = static_cast<size_t>(std::find(known.begin(), known.end(), mask) - known.begin());
    if (index == known.size()) {
      known.push_back(mask);
      made.push_back(std::make_shared<SequenceMask>(make_sequence_mask(
          mask, batch.documents, batch.layout, mesh_.ring->rank(), settings_.ring_method)));
    }
    masks.push_back(made[index]);
  }
  return masks;
}

// A copy from pageable memory waits for the work that the device was given before it: also for exchanges, and so for
// other ranks. So all copies come first.
void ModelExecutor::bring(const TokenBatch& batch, Pass& pass) const {
  std::vector<std::shared_ptr<const SequenceMask>> masks = masks_of(batch);  // this rank's own work
  std::optional<ActivityWait> wait;
  if (!settings_.device.is_cpu()) wait.emplace(activity_);
  pass.context = context_of(batch, pass.across);
  pass.context.masks = std::move(masks);
  pass.embedded = {batch.tokens.to(settings_.device).flatten(), pass.context.positions};
  pass.targets = batch.targets.to(settings_.device).flatten().contiguous();
}

SequenceContext ModelExecutor::context_of(const TokenBatch& batch, AcrossLayers& across) const {
  SequenceContext context;
  context.across = &across;
  context.batch = batch.tokens.size(0);
  context.shard_tokens = batch.tokens.size(1);
  context.positions = positions_in_documents(batch, mesh_.sp->rank()).to(settings_.device);
  context.rotary = rotary_of(batch, context.positions);
  context.layout = batch.layout;
  if (config_.delta_net && !batch.documents.empty())
    context.document_begins_BS = document_begins(batch.documents).to(settings_.device);
  return context;
}

std::vector<RotaryTable> ModelExecutor::rotary_of(const TokenBatch& batch,
                                                  const at::Tensor& positions) const {
  std::vector<RotaryTable> tables(static_cast<size_t>(config_.num_hidden_layers));
  if (!config_.rotates) return tables;
  RotaryTable table = rotary_table(config_.rope, config_.heads_of_full_attention().width, batch, positions);
  const auto& scaling = config_.rope.query_scaling;
  if (scaling && batch.layout.tokens <= scaling->original_positions) table.query_scale.reset();  // all are 1
  const RotaryTable of_windows =
      config_.window_rope ? rotary_table(*config_.window_rope, config_.head_dim, batch, positions) : table;
  for (size_t layer = 0; layer < tables.size(); ++layer)
    tables[layer] = config_.has_window_rope(static_cast<int64_t>(layer)) ? of_windows : table;
  return tables;
}

RotaryTable ModelExecutor::rotary_table(const RopeConfig& rope, int64_t head_dim, const TokenBatch& batch,
                                        const at::Tensor& positions) const {
  const int64_t tokens = batch.layout.tokens;
  // With one document a sample, all samples have the same positions: one table serves them.
  if (batch.documents.empty())
    return make_rotary_table(config_, rope, head_dim, tokens, positions.narrow(0, 0, batch.tokens.size(1)));
  RotaryTable table = make_rotary_table(config_, rope, head_dim, 1, positions);
  if (rope.kind != RopeKind::dynamic_ntk) return table;
  // The base depends on the length of the document, as if it were run alone.
  int64_t row = 0;
  for (const Documents& documents : batch.documents)
    for (const TokenSpan& span : batch.layout.spans(mesh_.sp->rank()))
      for (int64_t token = span.begin; token < span.end;) {
        const TokenSpan document = documents.at(token);
        const int64_t count = std::min(document.end, span.end) - token;
        if (document.size() > config_.max_position_embeddings) {
          const RotaryTable of_document =
              make_rotary_table(config_, rope, head_dim, document.size(), positions.narrow(0, row, count));
          table.cos.narrow(0, row, count).copy_(of_document.cos);
          table.sin.narrow(0, row, count).copy_(of_document.sin);
        }
        token += count;
        row += count;
      }
  return table;
}

UnitGradients ModelExecutor::open(int unit, Pass& pass) const {
  const UnitSpec& spec = layout_.units[static_cast<size_t>(unit)];
  const std::optional<int> trained = layout_.trained_unit(unit);
  if (!trained) return {spec, settings_.device};
  const OpenGradient gradient = pass.gradients->open(*trained);
  const auto number = static_cast<size_t>(*trained);
  UnitGradients sums(gradient.flat, layout_.trained()[number], gradient.state);
  if (!layout_.adapted()) return sums;
  return {spec, settings_.device, std::move(sums), layout_.adapters.whole[number]};
}

void ModelExecutor::close(int unit, Pass& pass) const {
  if (const std::optional<int> trained = layout_.trained_unit(unit)) pass.gradients->close(*trained);
}

UnitWeights ModelExecutor::gather(int unit, Pass& pass) const {
  UnitWeights weights = bind_weights(pass.order.gather(unit), layout_.units[static_cast<size_t>(unit)]);
  const std::optional<int> trained = layout_.trained_unit(unit);
  if (!layout_.adapted() || !trained) return weights;
  weights.adapt(adapters_->gather(*trained), layout_.adapters, static_cast<size_t>(*trained));
  const auto units = static_cast<int>(layout_.trained().size());
  if (*trained + 1 < units) adapters_->prefetch(*trained + 1);  // behind a step, forward's next
  return weights;
}

UnitWeights ModelExecutor::gather_head(Pass& pass) const {
  UnitWeights weights = gather(layout_.head_unit(), pass);
  if (layout_.tied) weights[kOutputMatrix] = gather(kEmbeddingUnit, pass)[kWords];
  return weights;
}

void ModelExecutor::release_head(Pass& pass) const {
  pass.order.release(layout_.head_unit());
  if (layout_.tied) pass.order.release(kEmbeddingUnit);
}

at::Tensor ModelExecutor::embed(Pass& pass) {
  const MemoryScope scope(MemoryCategory::activations);
  const int64_t tokens = pass.embedded.tokens.size(0);
  at::Tensor x;
  {
    const UnitWeights weights = gather(kEmbeddingUnit, pass);
    x = at::empty({tokens, config_.hidden_size}, weights[kWords].options().dtype(settings_.storage));
    in_tiles(tokens, [&](int64_t begin, int64_t count) {
      embedding_->forward(weights, pass.embedded.rows(begin, count), x.narrow(0, begin, count));
    });
  }
  pass.order.release(kEmbeddingUnit);
  if (layer_inputs_) make_layer_inputs(x, pass);
  return x;
}

void ModelExecutor::make_layer_inputs(const at::Tensor& x, Pass& pass) {
  AcrossLayers& across = pass.across;
  const int unit = kLayerInputsUnit;
  const int64_t tokens = x.size(0);
  across.inputs_LRP = at::empty({config_.num_hidden_layers, tokens, config_.layer_input_width}, x.options());
  const UnitWeights weights = gather(unit, pass);
  in_tiles(tokens, [&](int64_t begin, int64_t count) {
    layer_inputs_->forward(weights, pass.embedded.tokens.narrow(0, begin, count), x.narrow(0, begin, count),
                           across.inputs_LRP.narrow(1, begin, count));
  });
  pass.order.release(unit);
}

at::Tensor ModelExecutor::forward(
    const TokenBatch& batch,
    const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) {
  check(batch);
  Pass pass{UnitOrder(parameters_, forward_order(config_.num_hidden_layers, end_units_))};
  bring(batch, pass);
  at::Tensor x = embed(pass);
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    activity_.set_layer(layer, PassDirection::forward);
    const int unit = layout_.layer_unit(layer);
    x = layers_.forward(layer, gather(unit, pass), pass.context, x, nullptr);
    pass.order.release(unit);
  }
  activity_.leave_layers();
  const UnitWeights weights = gather_head(pass);
  at::Tensor loss;
  {
    const MemoryScope scope(MemoryCategory::tiles);
    loss = head_->loss(weights, settings_.logits_tile_tokens, x, pass.targets, on_logits);
    count_as(loss, MemoryCategory::other);
  }
  release_head(pass);
  return loss.view(batch.tokens.sizes());
}

void ModelExecutor::add_layer_inputs_gradient(const at::Tensor& dx, Pass& pass) {
  AcrossLayers& across = pass.across;
  const int unit = kLayerInputsUnit;
  {
    const UnitWeights weights = gather(unit, pass);
    UnitGradients sums = open(unit, pass);
    in_tiles(dx.size(0), [&](int64_t begin, int64_t count) {
      const auto rows = [&](const at::Tensor& whole) { return whole.narrow(0, begin, count); };
      layer_inputs_->backward(weights, sums, rows(pass.embedded.tokens), rows(across.x_RM),
                              across.inputs_LRP.narrow(1, begin, count), rows(dx));
    });
    sums.finish();
    pass.order.release(unit);
  }
  across.inputs_LRP = across.x_RM = at::Tensor();
  close(unit, pass);
}

void ModelExecutor::add_embedding_gradient(const at::Tensor& dx, Pass& pass) {
  const bool reads = layout_.embedding_read_backward;
  const UnitWeights weights = reads ? gather(kEmbeddingUnit, pass) : UnitWeights();
  UnitGradients sums = open(kEmbeddingUnit, pass);
  in_tiles(dx.size(0), [&](int64_t begin, int64_t count) {
    embedding_->backward(weights, sums, pass.embedded.rows(begin, count), dx.narrow(0, begin, count));
  });
  sums.finish();
  if (reads) pass.order.release(kEmbeddingUnit);
}

at::Tensor ModelExecutor::head_backward(double scale, at::Tensor& x, Pass& pass) {
  const UnitWeights weights = gather_head(pass);
  UnitGradients head_gradients = open(layout_.head_unit(), pass);
  std::optional<UnitGradients> embedding_gradients;
  if (layout_.tied && layout_.trained_unit(kEmbeddingUnit)) {
    embedding_gradients = open(kEmbeddingUnit, pass);
    head_gradients.exchange(kOutputMatrix, *embedding_gradients, kWords);
  }
  at::Tensor loss;
  {
    const MemoryScope scope(MemoryCategory::tiles);
    loss = head_->loss_and_gradient(weights, settings_.logits_tile_tokens, x, pass.targets, scale,
                                    head_gradients);
    count_as(loss, MemoryCategory::other);
  }
  if (embedding_gradients) {
    head_gradients.exchange(kOutputMatrix, *embedding_gradients, kWords);
    embedding_gradients->finish();
  }
  head_gradients.finish();
  release_head(pass);
  return loss;
}

at::Tensor ModelExecutor::group_backward(int64_t begin, int64_t end, at::Tensor dx, Pass& pass) {
  // From the last, as stores expect that bring back what they put away.
  std::vector<Saved> saved(static_cast<size_t>(end - begin));
  const auto of = [&](int64_t layer) -> Saved& { return saved[static_cast<size_t>(layer - begin)]; };
  for (int64_t layer = end - 1; layer >= begin; --layer) of(layer) = pass.activations->take(layer);

  for (int64_t layer = begin; layer + 1 < end; ++layer) {
    activity_.set_layer(layer, PassDirection::backward);
    const int unit = layout_.layer_unit(layer);
    of(layer + 1).at(kX) = layers_.forward_again(layer, gather(unit, pass), pass.context, of(layer));
    pass.order.release(unit);
  }
  for (int64_t layer = end - 1; layer >= begin; --layer) {
    activity_.set_layer(layer, PassDirection::backward);
    const int unit = layout_.layer_unit(layer);
    {
      UnitGradients layer_gradients = open(unit, pass);
      dx = layers_.backward(layer, gather(unit, pass), layer_gradients, pass.context, std::move(of(layer)),
                            dx);
      layer_gradients.finish();
      pass.order.release(unit);
    }
    close(unit, pass);
  }
  return dx;
}

at::Tensor ModelExecutor::forward_backward(const TokenBatch& batch, double scale, GradientStore& gradients,
                                           ActivationStore& activations) {
  const RecomputePlan& plan = layers_.plan();
  Pass pass{UnitOrder(parameters_, training_order(plan, end_units_)), &gradients, &activations};
  bring(batch, pass);
  at::Tensor x = embed(pass);
  if (layer_inputs_ && !layout_.adapted()) pass.across.x_RM = x;
  for (int64_t layer = 0; layer < plan.layers; ++layer) {
    activity_.set_layer(layer, PassDirection::forward);
    const int unit = layout_.layer_unit(layer);
    Saved saved;
    x = layers_.forward(layer, gather(unit, pass), pass.context, x, &saved);
    pass.order.release(unit);
    pass.activations->put(layer, std::move(saved));
  }

  activity_.leave_layers();
  const at::Tensor loss = head_backward(scale, x, pass);
  close(layout_.head_unit(), pass);
  at::Tensor dx = std::move(x);
  for (int64_t end = plan.layers; end > 0;) {
    const int64_t begin = plan.group_begin(end - 1);
    dx = group_backward(begin, end, dx, pass);
    end = begin;
  }

  activity_.leave_layers();
  // A tied matrix is open since the head; it closes here, after its second use.
  if (layer_inputs_ && !layout_.adapted()) add_layer_inputs_gradient(dx, pass);
  if (layout_.trained_unit(kEmbeddingUnit)) add_embedding_gradient(dx, pass);
  close(kEmbeddingUnit, pass);
  return loss.sum(at::kDouble);
}

}  // namespace trireme
