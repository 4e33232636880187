// The engine: a model, its stores, and the forward and backward pass over its units. Training, evaluation
// and verify drive this.
//
//   auto engine = assemble(world, model_dir, options);          // engine/assemble.h
//   engine->train_step(batches, learning_rate);                 // forward, backward, update
//
// One loss rule: every rank backpropagates sum(cross entropy) / (valid targets of the whole step over all
// ranks); gradients are summed over dp x sp; the same scalar is logged.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/comm/agreement.h"
#include "trireme/comm/mesh.h"
#include "trireme/data/token_batch.h"
#include "trireme/device/device_memory_observer.h"
#include "trireme/engine/agree_on_memory_fit.h"
#include "trireme/engine/engine_options.h"
#include "trireme/engine/on_nonfinite.h"
#include "trireme/engine/training_progress.h"
#include "trireme/forecast/choose_recompute.h"
#include "trireme/model/lora.h"
#include "trireme/model/model_config.h"
#include "trireme/model/model_layout.h"
#include "trireme/shard/unit_shares.h"

namespace trireme {

struct StepResult {
  double loss = 0;            // mean cross entropy over the step's valid targets, natural log
  double gradient_norm = 0;   // of the summed gradients, before clipping
  int64_t target_tokens = 0;  // over all ranks
  bool skipped = false;       // nothing was updated: not finite, or fp16's gradients overflowed
  double loss_scale = 1;      // fp16: with which the gradients were made
  std::string not_finite;     // which tensor, of a step that OnNonfinite::skip skipped; else empty
};

class NotFiniteStep : public DataErrorOnAllRanks {
 public:
  using DataErrorOnAllRanks::DataErrorOnAllRanks;
};

// What reading the model's files cost this rank; zero where they were not read.
struct WeightsRead {
  int64_t bytes = 0;  // headers included
  double seconds = 0;
};

struct EvaluationResult {
  double loss_sum = 0;        // of this batch, over all ranks
  int64_t target_tokens = 0;  // over all ranks
  at::Tensor loss_Bs;         // [B, s] fp32 on the CPU, this rank's tokens; 0 where the target is -100
};

class ActivationStore;
class CheckpointReader;
class DeferredUpdates;
class GradientStore;
class LayerRunner;
class LossScaler;
class ModelExecutor;
class Optimizer;
class ParameterStore;
struct StepNumbers;
class PinnedPool;
class ShardedAttention;
class ShardedDeltaNet;
class SpillFile;

// When a unit is stepped:
//
// optimizer on the device      all units are stepped before train_step returns (with update_in_backward: each
//                              in its close)
// on the host, or on a disk    a worker steps them in the same order (deferred_updates.h), while the next
//                              step's forward goes on (with update_in_backward: the backward of the layers
//                              below)
//
// What is decided about a step (clipping, the loss scale, refusing it) is decided before its first unit is
// stepped; update_in_backward has neither of the former, and refuses when units are stepped already.
class Engine {
 public:
  ~Engine();
  Engine& operator=(Engine&&) = delete;

  const ModelConfig& config() const { return config_; }
  const ModelLayout& layout() const { return layout_; }
  // Whose adapters the layout has.
  const LoraConfig& lora() const { return lora_; }
  const EngineOptions& options() const { return options_; }
  Mesh& mesh() { return mesh_; }
  // Of all ranks of the run.
  Agreement agreement() { return {*mesh_.all, options_.device}; }
  // Bytes of this rank's tensors by what they are for; peaks are those since the engine was
  // assembled or the account's were reset.
  std::shared_ptr<MemoryAccount> memory_account() { return memory_.account; }
  // What the memory forecast depends on, for this rank and micro-batches of `batch` samples of `tokens`
  // tokens.
  ForecastInputs forecast_inputs(int64_t batch, int64_t tokens) const;
  // What --recompute auto came to, the same on every rank; none where another policy was asked for, or where
  // the batch was not known (then it is keep_attention).
  std::optional<RecomputeChoice> recompute_choice() const { return recompute_choice_; }
  // None where nothing was planned with a budget (rank_budget.h).
  std::optional<FitOfRanks> memory_fit() const { return memory_fit_; }
  // "attention flash (CPU, ...); values in bf16, matmuls in bf16; recompute none; ..." for logs and `info`.
  std::string description() const;

  // Of attention on a rank, and how a sequence is shared over ring ranks.
  std::string attention_kernel() const;
  bool attends_by_reference() const;
  const WeightsRead& weights_read() const { return weights_read_; }
  // Seconds so far in which this rank's forward and backward stood still for updates on the host or for a
  // disk. Copies between a GPU and its host, for which streams wait, are not known here.
  double offload_wait_seconds() const;

  // A whole optimizer step. Collective. Throws DataErrorOnAllRanks when no target is valid, NotFiniteStep naming
  // the step's numbers when the loss or the gradient norm is not finite (the parameters are then unchanged, but
  // with update_in_backward), unless such a step is to be skipped, which update_in_backward cannot.
  StepResult train_step(const StepBatches& batches, double learning_rate,
                        OnNonfinite on_nonfinite = OnNonfinite::stop);

  // The step's loss and summed gradients without an update; gradients stay until the next call. Collective.
  StepResult accumulate_gradients(const StepBatches& batches);
  // The whole fp32 gradient of a unit after accumulate_gradients, summed over ranks; see parameter_view.
  // Collective where gradients are sharded.
  at::Tensor unit_gradient(int unit);

  // Forward only, split over ranks like training. Collective. With `on_logits`, hands over the logits tile by
  // tile: rows [first_row, first_row + n) of this rank's flattened [B * s] tokens, [n, V].
  EvaluationResult evaluate(
      const TokenBatch& batch,
      const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits = nullptr);

  // Units are numbered as ModelLayout::trained has them, here and below.
  // fp32 values of a whole unit. Collective where they are sharded. Not to be written to.
  at::Tensor unit_values(int unit) { return unit_state(unit, "master"); }

  // What a checkpoint must hold of every unit: flat fp32 tensors of the whole unit, named "master" and as the
  // optimizer names its own ("exp_avg", "exp_avg_sq"). unit_state is collective where they are sharded.
  std::vector<std::string> state_names() const;
  at::Tensor unit_state(int unit, const std::string& name);
  // On the CPU. Waits for the device, and so for the collectives that it has yet to finish.
  at::Tensor read_back(const at::Tensor& values) const;
  // By all ranks together: each gives the part that unit_share names, fp32 [share.elements] on the CPU, zero
  // beyond the unit's elements. So a rank reads as little of a checkpoint as there are ranks. Collective with
  // ZeRO 0.
  UnitShare unit_share(int unit) const;
  void restore_unit_share(int unit, const std::string& name, const at::Tensor& share);
  TrainingProgress progress() const;
  void restore_progress(const TrainingProgress& progress);

  // Model FLOPs of a micro-batch's whole samples, forward and backward: T x ModelLayout::flops_per_token (6 N)
  // + 12 H D x (pairs of query and key that the layers' masks let see each other). Causal without documents or
  // windows: 6 N T + 6 L H D S^2 a sample.
  double model_flops(const TokenBatch& batch) const;

 private:
  int64_t trained_elements(int unit) const {
    return layout_.trained().at(static_cast<size_t>(unit)).elements;
  }
  friend std::unique_ptr<Engine> assemble(World& world, const std::filesystem::path& model_dir,
                                          const EngineOptions& options, const ModelFamilies& families);
  // These are in assemble.cpp.
  Engine(World& world, const std::filesystem::path& model_dir, const EngineOptions& options,
         const ModelFamilies& families);
  void make_stores(at::ScalarType tile_dtype);
  void make_parameters(const std::vector<FlatUnit>& units, at::ScalarType tile_dtype);
  void make_gradients(const std::vector<FlatUnit>& units);
  void make_optimizer(const std::vector<FlatUnit>& units);
  // Collective, as those below.
  void read_weights(const CheckpointReader& reader, const ModelLayout& files, ParameterStore& store);
  void read_adapters(const CheckpointReader& model);
  void make_executor();

  // Of those that are trained.
  int unit_count() const { return static_cast<int>(layout_.trained().size()); }
  double loss_scale() const;
  void wait_for_updates() const;
  // Of all units.
  void update(double learning_rate, double gradient_factor);
  // --update_in_backward: takes the unit's summed gradient and steps it, or has it stepped.
  void step_in_backward(int unit, at::Tensor gradient);
  // On the updates' thread where there is one, else here.
  void submit_or_run(int unit, std::function<void()> step);
  // Steps one unit with its summed gradient.
  void step_unit(int unit, at::Tensor& gradient, const StepNumbers& numbers);
  // Forward and backward of the whole step, gradients scaled by `loss_scale`: loss and targets. No update is
  // under way at its end.
  StepResult backward(const StepBatches& batches, double loss_scale);
  // An out-of-memory error is to name the options that would help with batches as this one.
  void note_batch(const TokenBatch& batch);
  // Collective: all ranks have the same result, and look together for the tensor at fault.
  StepResult skip_or_refuse(StepResult result, OnNonfinite on_nonfinite);
  // Of all ranks.
  int64_t count_targets(const StepBatches& batches);

  // A step whose update happens during its backward (--update_in_backward).
  struct UpdateInBackward {
    double learning_rate = 0;
    int64_t step = 0;
    at::Tensor gradient_squares;  // [] fp64 on the device: of the units stepped so far, this rank's shares
  };

  // Each may use those above it, and ends before them.
  EngineOptions options_;
  RankMemory memory_;
  ModelConfig config_;
  ModelLayout layout_;
  LoraConfig lora_;
  Mesh mesh_;
  ForecastInputs forecast_inputs_;  // of the last micro-batch
  std::optional<RecomputeChoice> recompute_choice_;
  std::optional<FitOfRanks> memory_fit_;
  std::unique_ptr<SpillFile> spill_;    // for what is offloaded to disk
  std::shared_ptr<PinnedPool> pinned_;  // beside a GPU with offloaded parameters or optimizer
  UpdateInBackward backward_update_;
  std::unique_ptr<LocalAttention> local_attention_;
  std::unique_ptr<ShardedAttention> attention_;
  std::unique_ptr<ShardedAttention>
      full_attention_;                          // of layers with heads of their own; null: there are none
  std::unique_ptr<ParameterStore> frozen_;      // the model's where adapters are trained; else null
  std::unique_ptr<ParameterStore> parameters_;  // of what is trained
  std::unique_ptr<ParameterStore> parameters_in_update_;  // as the executor sees them; null: as they are
  std::unique_ptr<GradientStore> gradients_;
  std::unique_ptr<ActivationStore> activations_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<LossScaler> loss_scaler_;     // fp16 alone
  std::unique_ptr<ShardedDeltaNet> delta_net_;  // of layers without attention; null: there are none
  std::unique_ptr<LayerRunner> layers_;
  std::unique_ptr<ModelExecutor> executor_;
  WeightsRead weights_read_;
  int64_t optimizer_steps_ = 0;
  double rank_loss_ = 0;                      // summed over this rank's tokens of the last step
  std::unique_ptr<DeferredUpdates> updates_;  // null: units are stepped where they come
};

}  // namespace trireme
