// The Engine over a walk and its stores: counts the step's targets over all ranks first, runs every
// micro-batch, sums the gradients, clips, steps the optimizer.
#pragma once

#include <memory>
#include <string>

#include "trireme/engine/engine.h"
#include "trireme/engine/model_walk.h"
#include "trireme/shard/optimizer.h"

namespace trireme {

// Everything that assemble chose; TrainingEngine owns it.
struct EngineParts {
  ModelConfig config;
  ModelLayout layout;
  EngineOptions options;
  Mesh mesh;
  std::string description;
  std::unique_ptr<LocalAttention> attention;
  std::unique_ptr<ParameterStore> parameters;
  std::unique_ptr<GradientStore> gradients;
  std::unique_ptr<ActivationStore> activations;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<LayerRunner> layers;
  std::unique_ptr<ModelWalk> walk;
};

class TrainingEngine final : public Engine {
 public:
  explicit TrainingEngine(std::unique_ptr<EngineParts> parts) : parts_(std::move(parts)) {}

  const ModelConfig& config() const override { return parts_->config; }
  const ModelLayout& layout() const override { return parts_->layout; }
  const EngineOptions& options() const override { return parts_->options; }
  Mesh& mesh() override { return parts_->mesh; }
  std::string description() const override { return parts_->description; }

  StepResult train_step(const StepBatches& batches, double learning_rate) override;
  StepResult accumulate_gradients(const StepBatches& batches) override;
  at::Tensor gradient(const ParameterSpec& parameter, int unit) override;
  EvaluationResult evaluate(
      const TokenBatch& batch,
      const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) override;
  at::Tensor unit_values(int unit) override { return parts_->parameters->master(unit); }
  std::vector<StateTensor> state() override;
  int64_t optimizer_steps() const override { return optimizer_steps_; }
  void state_restored(int64_t optimizer_steps) override;
  double model_flops(int64_t tokens, int64_t batch) const override;

 private:
  int unit_count() const { return static_cast<int>(parts_->layout.units.size()); }
  // Both summed over every rank of the run.
  int64_t count_targets(const StepBatches& batches);
  double sum_over_ranks(double value);

  std::unique_ptr<EngineParts> parts_;
  int64_t optimizer_steps_ = 0;
};

}  // namespace trireme
