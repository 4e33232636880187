// The engine: a model, its stores and the walk over its units. Training, evaluation, verify and export all
// drive this.
//
//   auto engine = assemble(world, model_dir, options);          // engine/assemble.h
//   engine->train_step(batches, learning_rate);                 // forward, backward, update
//
// One loss rule: every rank backpropagates sum(cross entropy) / (valid targets of the whole step over all
// ranks); gradients are summed over dp x sp; the same scalar is logged.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/comm/agreement.h"
#include "trireme/comm/mesh.h"
#include "trireme/data/token_batch.h"
#include "trireme/device/memory_account.h"
#include "trireme/engine/engine_options.h"
#include "trireme/forecast/choose_recompute.h"
#include "trireme/model/model_config.h"
#include "trireme/model/parameter_layout.h"

namespace trireme {

struct StepResult {
  double loss = 0;            // mean cross entropy over the step's valid targets, natural log
  double gradient_norm = 0;   // of the summed gradients, before clipping
  int64_t target_tokens = 0;  // over all ranks
  bool skipped = false;       // fp16: gradients overflowed, nothing was changed but the loss scale
  double loss_scale = 1;      // fp16: with which the gradients were made
};

struct EvaluationResult {
  double loss_sum = 0;        // of this batch, over all ranks
  int64_t target_tokens = 0;  // over all ranks
  at::Tensor loss_Bs;         // [B, s] fp32 on the CPU, this rank's tokens; 0 where the target is -100
};

// The numbers beside the tensors that a checkpoint must hold.
struct TrainingProgress {
  int64_t optimizer_steps = 0;  // updates made
  double loss_scale = 0;        // fp16 alone; 0: none
  int64_t clean_steps = 0;      // since the loss scale last changed
};

class Engine {
 public:
  virtual ~Engine() = default;
  Engine& operator=(Engine&&) = delete;

  virtual const ModelConfig& config() const = 0;
  virtual const ModelLayout& layout() const = 0;
  virtual const EngineOptions& options() const = 0;
  virtual Mesh& mesh() = 0;
  // Of all ranks of the run.
  Agreement agreement() { return {*mesh().all, options().device}; }
  // Bytes of this rank's tensors by what they are for; peaks are those since the engine was
  // assembled or the account's were reset.
  virtual std::shared_ptr<MemoryAccount> memory_account() = 0;
  // What the memory forecast depends on, for this rank and micro-batches of `batch` samples of `tokens` tokens.
  virtual ForecastInputs forecast_inputs(int64_t batch, int64_t tokens) const = 0;
  // What --recompute auto came to, the same on every rank; none where another policy was asked for, or where the batch
  // was not known (then it is keep_attention).
  virtual std::optional<RecomputeChoice> recompute_choice() const = 0;
  // "attention flash-cpu fp32; matmul bf16 values in fp32; ..." for logs and `trireme info`.
  virtual std::string description() const = 0;

  // A whole optimizer step. Collective. Throws DataError naming the step's numbers when no target is valid,
  // or when the loss or the gradient norm is not finite (the parameters are then unchanged,
  // but with update_in_backward).
  virtual StepResult train_step(const StepBatches& batches, double learning_rate) = 0;

  // The step's loss and summed gradients without an update; gradients stay until the next call. Collective.
  virtual StepResult accumulate_gradients(const StepBatches& batches) = 0;
  // The whole fp32 gradient of a unit after accumulate_gradients, summed over ranks; see parameter_view. Collective
  // where gradients are sharded.
  virtual at::Tensor unit_gradient(int unit) = 0;

  // Forward only, split over ranks like training. Collective. With `on_logits`, hands over the logits tile by
  // tile: rows [first_row, first_row + n) of this rank's flattened [B * s] tokens, [n, V].
  virtual EvaluationResult evaluate(
      const TokenBatch& batch,
      const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits = nullptr) = 0;

  // fp32 values of a whole unit. Collective where they are sharded. Not to be written to.
  at::Tensor unit_values(int unit) { return unit_state(unit, "master"); }

  // What a checkpoint must hold of every unit: flat fp32 tensors of the whole unit, named "master" and as the optimizer
  // names its own ("exp_avg", "exp_avg_sq"). unit_state is collective where they are sharded; every rank restores
  // the same values.
  virtual std::vector<std::string> state_names() const = 0;
  virtual at::Tensor unit_state(int unit, const std::string& name) = 0;
  virtual void restore_unit_state(int unit, const std::string& name, const at::Tensor& whole) = 0;
  virtual TrainingProgress progress() const = 0;
  virtual void restore_progress(const TrainingProgress& progress) = 0;

  // Model FLOPs of a micro-batch's whole samples, forward and backward: 6 N T + 12 H D x (pairs of query and key that
  // the layers' masks let see each other). Causal without documents or windows: 6 N T + 6 L H D S^2 a sample.
  virtual double model_flops(const TokenBatch& batch) const = 0;
};

}  // namespace trireme
