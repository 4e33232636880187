// The Engine over a walk and its stores: counts the step's targets over all ranks first, runs every
// micro-batch, sums the gradients, clips, steps the optimizer.
//
//   optimizer on the device      all units are stepped before train_step returns (with update_in_backward: each
//                                in its close)
//   on the host, or on a disk    a worker steps them in the same order (deferred_updates.h), while the next step's
//                                forward goes on (with update_in_backward: the backward of the layers below)
//
// What is decided about a step (clipping, the loss scale, refusing it) is decided before its first unit is stepped;
// update_in_backward has neither of the former, and refuses when units are stepped already.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trireme/device/device_memory_observer.h"
#include "trireme/engine/deferred_updates.h"
#include "trireme/engine/engine.h"
#include "trireme/engine/model_walk.h"
#include "trireme/memory/spill_file.h"
#include "trireme/shard/loss_scaler.h"
#include "trireme/shard/optimizer.h"

namespace trireme {

// A step whose update happens during its backward (--update_in_backward).
struct UpdateInBackward {
  double learning_rate = 0;
  int64_t step = 0;
  at::Tensor gradient_squares;  // [] fp64 on the device: of the units stepped so far, this rank's shares
};

// Everything that assemble chose; TrainingEngine owns it.
struct EngineParts {
  ModelConfig config;
  ModelLayout layout;
  EngineOptions options;
  Mesh mesh;
  std::string description;
  RankMemory memory;
  ForecastInputs forecast_inputs;  // of the last micro-batch
  std::optional<RecomputeChoice> recompute_choice;
  std::vector<UnitShare> shares;       // of each unit, what this rank steps
  std::unique_ptr<SpillFile> spill;    // for what is offloaded to disk
  std::shared_ptr<PinnedPool> pinned;  // beside a GPU with offloaded parameters or optimizer
  UpdateInBackward update;
  std::unique_ptr<LocalAttention> local_attention;
  std::unique_ptr<SequenceAttention> attention;
  std::unique_ptr<ParameterStore> parameters;
  std::unique_ptr<ParameterStore> parameters_in_update;  // as the walk sees them; null: as they are
  std::unique_ptr<GradientStore> gradients;
  std::unique_ptr<ActivationStore> activations;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<LossScaler> loss_scaler;  // fp16 alone
  std::unique_ptr<LayerRunner> layers;
  std::unique_ptr<ModelWalk> walk;
  std::unique_ptr<DeferredUpdates>
      updates;  // null: units are stepped where they come; last: ends before the rest
};

// --update_in_backward: takes the unit's summed gradient and steps it, or has it stepped.
void step_in_backward(EngineParts& parts, int unit, at::Tensor gradient);

class TrainingEngine final : public Engine {
 public:
  explicit TrainingEngine(std::unique_ptr<EngineParts> parts) : parts_(std::move(parts)) {}

  const ModelConfig& config() const override { return parts_->config; }
  const ModelLayout& layout() const override { return parts_->layout; }
  const EngineOptions& options() const override { return parts_->options; }
  Mesh& mesh() override { return parts_->mesh; }
  std::string description() const override { return parts_->description; }
  std::shared_ptr<MemoryAccount> memory_account() override { return parts_->memory.account; }
  ForecastInputs forecast_inputs(int64_t batch, int64_t tokens) const override;
  std::optional<RecomputeChoice> recompute_choice() const override { return parts_->recompute_choice; }

  StepResult train_step(const StepBatches& batches, double learning_rate) override;
  StepResult accumulate_gradients(const StepBatches& batches) override;
  at::Tensor unit_gradient(int unit) override;
  EvaluationResult evaluate(
      const TokenBatch& batch,
      const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) override;
  std::vector<std::string> state_names() const override;
  at::Tensor unit_state(int unit, const std::string& name) override;
  void restore_unit_state(int unit, const std::string& name, const at::Tensor& whole) override;
  TrainingProgress progress() const override;
  void restore_progress(const TrainingProgress& progress) override;
  double model_flops(const TokenBatch& batch) const override;

 private:
  int unit_count() const { return static_cast<int>(parts_->layout.units.size()); }
  void wait_for_updates() const;
  // Of all units.
  void update(double learning_rate, double gradient_factor);
  // Forward and backward of the whole step, gradients scaled by `loss_scale`: loss and targets. No update is under way
  // at its end.
  StepResult backward(const StepBatches& batches, double loss_scale);
  void check_update_in_backward(const StepBatches& batches) const;
  // An out-of-memory error is to name the options that would help with batches as this one.
  void note_batch(const TokenBatch& batch);
  // Collective: all ranks have the same result, and look together for the tensor at fault.
  [[noreturn]] void refuse(const StepResult& result);
  // Of all ranks.
  int64_t count_targets(const StepBatches& batches);

  std::unique_ptr<EngineParts> parts_;
  int64_t optimizer_steps_ = 0;
  double rank_loss_ = 0;  // summed over this rank's tokens of the last step
};

}  // namespace trireme
