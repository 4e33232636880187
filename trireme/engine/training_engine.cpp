#include "trireme/engine/training_engine.h"

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"

namespace trireme {

double TrainingEngine::sum_over_ranks(double value) {
  at::Tensor sum =
      at::full({1}, value, at::TensorOptions().dtype(at::kDouble).device(parts_->options.device));
  all_reduce_sum(*parts_->mesh.all, sum);
  return sum.item<double>();
}

int64_t TrainingEngine::count_targets(const StepBatches& batches) {
  double count = 0;
  for (const TokenBatch& batch : batches)
    count += static_cast<double>(batch.targets.ge(0).sum().item<int64_t>());
  return static_cast<int64_t>(sum_over_ranks(count));
}

StepResult TrainingEngine::accumulate_gradients(const StepBatches& batches) {
  const at::NoGradGuard no_autograd;
  EngineParts& parts = *parts_;
  for (const TokenBatch& batch : batches) parts.walk->check(batch);
  StepResult result;
  result.target_tokens = count_targets(batches);
  if (result.target_tokens == 0)
    throw DataError(
        cat("optimizer step ", optimizer_steps_ + 1,
            ": none of its tokens has a target (all labels are -100); check the data and their masks"));
  const double scale = 1.0 / static_cast<double>(result.target_tokens);
  parts.gradients->clear();
  double loss_sum = 0;
  for (const TokenBatch& batch : batches)
    loss_sum += parts.walk->forward_backward(batch, scale, *parts.gradients, *parts.activations);
  result.loss = sum_over_ranks(loss_sum) * scale;
  parts.gradients->finish();
  std::vector<at::Tensor> summed;
  for (int unit = 0; unit < unit_count(); ++unit) summed.push_back(parts.gradients->summed(unit));
  result.gradient_norm = trireme::gradient_norm(summed);
  return result;
}

StepResult TrainingEngine::train_step(const StepBatches& batches, double learning_rate) {
  const at::NoGradGuard no_autograd;
  EngineParts& parts = *parts_;
  const StepResult result = accumulate_gradients(batches);
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))
    throw DataError(
        cat("optimizer step ", optimizer_steps_ + 1, ": the loss is ", result.loss, " and the gradient norm ",
            result.gradient_norm,
            "; the parameters were not changed. A lower --learning_rate, --max_grad_norm 1, or resuming "
            "from the last checkpoint with another --seed usually helps; check the weights for infinities"));
  const double limit = parts.options.optimizer.max_grad_norm;
  // The small term is torch's, so that clipped runs compare.
  const double factor = limit > 0 ? std::min(1.0, limit / (result.gradient_norm + 1e-6)) : 1.0;
  ++optimizer_steps_;
  for (int unit = 0; unit < unit_count(); ++unit) {
    at::Tensor master = parts.parameters->master(unit), gradient = parts.gradients->summed(unit);
    parts.optimizer->step(unit, master, gradient, learning_rate, factor, optimizer_steps_);
    parts.parameters->masters_changed(unit);
  }
  return result;
}

at::Tensor TrainingEngine::gradient(const ParameterSpec& parameter, int unit) {
  return parameter_view(parts_->gradients->summed(unit), parameter);
}

EvaluationResult TrainingEngine::evaluate(
    const TokenBatch& batch,
    const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) {
  const at::NoGradGuard no_autograd;
  EvaluationResult result;
  result.loss_Bs = parts_->walk->forward(batch, on_logits).to(at::kCPU);
  result.loss_sum = sum_over_ranks(result.loss_Bs.sum(at::kDouble).item<double>());
  result.target_tokens = count_targets({batch});
  return result;
}

std::vector<StateTensor> TrainingEngine::state() {
  std::vector<StateTensor> all;
  for (int unit = 0; unit < unit_count(); ++unit) {
    const std::string prefix = parts_->layout.units[static_cast<size_t>(unit)].name + "/";
    all.push_back({prefix + "master", unit, parts_->parameters->master(unit)});
    for (const auto& [name, values] : parts_->optimizer->state(unit))
      all.push_back({prefix + name, unit, values});
  }
  return all;
}

void TrainingEngine::state_restored(int64_t optimizer_steps) {
  const at::NoGradGuard no_autograd;
  optimizer_steps_ = optimizer_steps;
  for (int unit = 0; unit < unit_count(); ++unit) parts_->parameters->masters_changed(unit);
}

double TrainingEngine::model_flops(int64_t tokens, int64_t batch) const {
  const ModelConfig& config = parts_->config;
  const auto S = static_cast<double>(tokens);
  double pairs = 0;  // S^2 of full causal attention; a window sees fewer
  for (const int64_t window : config.layer_window) {
    const auto W = static_cast<double>(window);
    pairs += window == 0 || window >= tokens ? S * S : 2 * W * S - W * W;
  }
  const auto width = static_cast<double>(config.query_width());
  return static_cast<double>(batch) *
         (6.0 * static_cast<double>(config.matmul_parameter_count()) * S + 6.0 * width * pairs);
}

}  // namespace trireme
