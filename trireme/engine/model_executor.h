// The forward and the backward pass over a model's units, beside four stores: parameters, gradients,
// activations (and the optimizer, in engine.cpp). It knows no policy: a policy is a choice of store, or of
// slots that layers keep (recompute_plan.h).
//
//   forward    x = embedding[tokens];  (what layers are told beside x);  for each layer: gather, x = layer(x),
//              activations.put
//   head       loss, d(x) and the head's gradient, in tiles
//   backward   for each group of layers from the last: activations.take of its layers; forward again of all
//              but its last; for each of its layers from the last: gather, dx = layer'(dy), gradients.close
//   embedding  (layers' inputs: d(x) += ...);  rows of d(x) added to the rows of its gradient, in tiles
//
// A unit is released before its gradient is closed; while one computes, the store may gather the next.
#pragma once

#include <functional>
#include <memory>

#include "trireme/comm/mesh.h"
#include "trireme/data/token_batch.h"
#include "trireme/engine/layer_runner.h"
#include "trireme/engine/unit_order.h"
#include "trireme/forecast/gather_order.h"
#include "trireme/model/embedding.h"
#include "trireme/model/head.h"
#include "trireme/model/layer_inputs.h"
#include "trireme/model/model_layout.h"
#include "trireme/shard/gradient_store.h"
#include "trireme/shard/parameter_store.h"

namespace trireme {

struct ExecutorSettings {
  at::Device device = at::kCPU;
  at::ScalarType storage = at::kFloat;
  int64_t logits_tile_tokens = 512;  // of one tile of the head, and of the embedding
  bool strict_divisible = false;
  RingMethod ring_method = RingMethod::ring;
  SparseBlocks sparse = {};
};

class ModelExecutor {
 public:
  // `parameters` of the layout's units; `adapters` of its adapters' units, which are then what is trained:
  // gradients are those of ModelLayout::trained.
  ModelExecutor(const ModelConfig& config, const ModelLayout& layout, const Mesh& mesh, LayerRunner& layers,
                ParameterStore& parameters, const ExecutorSettings& settings,
                ParameterStore* adapters = nullptr);

  // Forward and backward of one micro-batch that `check` has taken: adds d(sum of losses * scale) to the
  // gradients; returns the sum of losses of this rank's tokens, [] fp64 on the device, for which nobody has
  // waited. Collective over the sp group.
  at::Tensor forward_backward(const TokenBatch& batch, double scale, GradientStore& gradients,
                              ActivationStore& activations);

  // Forward alone: each token's loss [B, s] fp32 on the device. Collective over the sp group.
  at::Tensor forward(const TokenBatch& batch,
                     const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits);

  // Throws ConfigError or DataError for a batch that this model and these ranks cannot take; touches no
  // parameter.
  void check(const TokenBatch& batch) const;

 private:
  // What a micro-batch takes along through the model.
  struct Pass {
    UnitOrder order;
    GradientStore* gradients = nullptr;  // of a pass with backward, as the activations
    ActivationStore* activations = nullptr;
    AcrossLayers across = {};
    SequenceContext context = {};
    EmbeddedTokens embedded = {};
    at::Tensor targets = {};  // [B * s] int64
  };

  // What the pass reads of the batch, on the device.
  void bring(const TokenBatch& batch, Pass& pass) const;
  // Without masks.
  SequenceContext context_of(const TokenBatch& batch, AcrossLayers& across) const;
  std::vector<RotaryTable> rotary_of(const TokenBatch& batch, const at::Tensor& positions) const;
  RotaryTable rotary_table(const RopeConfig& rope, int64_t head_dim, const TokenBatch& batch,
                           const at::Tensor& positions) const;
  std::vector<std::shared_ptr<const SequenceMask>> masks_of(const TokenBatch& batch) const;
  // x; and of models that have them what layers are told beside it.
  at::Tensor embed(Pass& pass);
  void make_layer_inputs(const at::Tensor& x, Pass& pass);
  // Loss of each token; x becomes d(x).
  at::Tensor head_backward(double scale, at::Tensor& x, Pass& pass);
  // Back through layers [begin, end), one group of the plan: d(output) of the last -> d(input) of the first.
  at::Tensor group_backward(int64_t begin, int64_t end, at::Tensor dx, Pass& pass);
  // Added to dx too; what layers were told is freed.
  void add_layer_inputs_gradient(const at::Tensor& dx, Pass& pass);
  void add_embedding_gradient(const at::Tensor& dx, Pass& pass);
  UnitGradients open(int unit, Pass& pass) const;
  void close(int unit, Pass& pass) const;
  // A unit's values, with its adapters, until it is released.
  UnitWeights gather(int unit, Pass& pass) const;
  UnitWeights gather_head(Pass& pass) const;  // with the embedding's matrix where it has none
  void release_head(Pass& pass) const;
  // Calls body(begin, count) for each tile of tokens.
  template <typename Body>
  void in_tiles(int64_t tokens, const Body& body) const;

  const ModelConfig& config_;
  const ModelLayout& layout_;
  const EndUnits end_units_;
  std::unique_ptr<const Embedding> embedding_;
  std::unique_ptr<const LayerInputs> layer_inputs_;  // null: the model has none
  std::unique_ptr<const Head> head_;
  const Mesh& mesh_;
  RankActivity& activity_;  // told the layer at work
  LayerRunner& layers_;
  ParameterStore& parameters_;
  ParameterStore* adapters_;
  ExecutorSettings settings_;
};

}  // namespace trireme
