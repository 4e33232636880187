#include "trireme/engine/training_engine.h"

#include <cmath>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"
#include "trireme/engine/not_finite_tensor.h"
#include "trireme/forecast/memory_options.h"
#include "trireme/memory/through_pinned.h"
#include "trireme/shard/masters.h"

namespace trireme {

int64_t TrainingEngine::count_targets(const StepBatches& batches) {
  int64_t count = 0;
  for (const TokenBatch& batch : batches) count += batch.targets.ge(0).sum().item<int64_t>();
  return agreement().sum(count);
}

ForecastInputs TrainingEngine::forecast_inputs(int64_t batch, int64_t tokens) const {
  return with_batch(parts_->forecast_inputs, batch, tokens);
}

void TrainingEngine::note_batch(const TokenBatch& batch) {
  ForecastInputs& inputs = parts_->forecast_inputs;
  const int64_t samples = batch.tokens.size(0), tokens = batch.layout.tokens;
  if (inputs.batch == samples && inputs.tokens == tokens) return;
  inputs = forecast_inputs(samples, tokens);
  parts_->memory.account->set_options(memory_options(inputs));
}

StepResult TrainingEngine::backward(const StepBatches& batches, double loss_scale) {
  EngineParts& parts = *parts_;
  TRIREME_ASSERT(parts.options.purpose == Purpose::training, "an engine for evaluation was asked to train");
  for (const TokenBatch& batch : batches) {
    parts.walk->check(batch);
    note_batch(batch);
  }
  StepResult result;
  result.loss_scale = loss_scale;
  result.target_tokens = count_targets(batches);
  if (result.target_tokens == 0)
    throw DataError(
        cat("optimizer step ", optimizer_steps_ + 1,
            ": none of its tokens has a target (all labels are -100); check the data and their masks"));
  const double mean = 1.0 / static_cast<double>(result.target_tokens);
  parts.gradients->clear();
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(parts.options.device));
  for (const TokenBatch& batch : batches)
    loss_sum += parts.walk->forward_backward(batch, mean * loss_scale, *parts.gradients, *parts.activations);
  rank_loss_ = loss_sum.item<double>();
  result.loss = agreement().sum(rank_loss_) * mean;
  // Those of the step before are done, as every unit was used since; those of this step's backward are not.
  wait_for_updates();
  parts.gradients->finish();
  return result;
}

void TrainingEngine::wait_for_updates() const {
  if (parts_->updates) parts_->updates->wait_all();
}

StepResult TrainingEngine::accumulate_gradients(const StepBatches& batches) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(parts_->memory);
  if (parts_->options.update_in_backward)
    throw ConfigError("gradients are not kept with --update_in_backward; leave it out to look at them");
  wait_for_updates();
  // fp16: with the scale of training, so that small gradients are as in training.
  const double loss_scale = parts_->loss_scaler ? parts_->loss_scaler->scale() : 1.0;
  StepResult result = backward(batches, loss_scale);
  if (loss_scale != 1) parts_->gradients->multiply(1 / loss_scale);
  result.gradient_norm = gradient_norm(*parts_->gradients, unit_count(), *parts_->mesh.all);
  return result;
}

namespace {

// Steps one unit with its summed gradient.
void step_unit(EngineParts& parts, int unit, at::Tensor& gradient, double learning_rate,
               double gradient_factor, int64_t step) {
  at::Tensor master = parts.parameters->open_master(unit);
  parts.optimizer->step(unit, master, gradient, learning_rate, gradient_factor, step);
  parts.parameters->close_master(unit);
}

// On the updates' thread where there is one, else here.
void submit_or_run(EngineParts& parts, int unit, DeferredUpdates::Job step) {
  if (parts.updates) {
    parts.updates->submit(unit, std::move(step));
  } else {
    step();
  }
}

}  // namespace

void step_in_backward(EngineParts& parts, int unit, at::Tensor gradient) {
  // Gradients do not exist together: one at most waits or is at work beside those that the walk has open.
  if (parts.updates) parts.updates->wait_all();
  DeferredUpdates::Job step = [&parts, unit, gradient = std::move(gradient)]() mutable {
    at::Tensor here = [&] {
      const MemoryScope scope(MemoryCategory::gradients);
      parts.update.gradient_squares += sum_of_squares(gradient);
      const at::Tensor there = std::exchange(gradient, at::Tensor());
      return parts.options.offload.optimizer == Offload::none ? there : on_host(there, parts.pinned.get());
    }();
    step_unit(parts, unit, here, parts.update.learning_rate, 1, parts.update.step);
  };
  submit_or_run(parts, unit, std::move(step));
}

void TrainingEngine::update(double learning_rate, double gradient_factor) {
  EngineParts& parts = *parts_;
  for (int unit = 0; unit < unit_count(); ++unit) {
    const bool last = unit + 1 == unit_count();
    DeferredUpdates::Job step = [&parts, unit, last, learning_rate, gradient_factor,
                                 number = optimizer_steps_] {
      if (!last) {
        parts.parameters->prefetch_master(unit + 1);
        parts.optimizer->prefetch(unit + 1);
      }
      at::Tensor gradient = [&] {
        const MemoryScope scope(MemoryCategory::gradients);
        return parts.gradients->summed(unit);
      }();
      step_unit(parts, unit, gradient, learning_rate, gradient_factor, number);
    };
    submit_or_run(parts, unit, std::move(step));
  }
}

void TrainingEngine::check_update_in_backward(const StepBatches& batches) const {
  if (batches.size() > 1)
    throw ConfigError(cat("--update_in_backward steps a unit as soon as its gradient is whole, which ",
                          batches.size(),
                          " accumulated micro-batches do not allow; use --gradient_accumulation_steps 1"));
}

void TrainingEngine::refuse(const StepResult& result) {
  const bool changed = parts_->options.update_in_backward;
  wait_for_updates();
  throw DataError(cat(
      "optimizer step ", optimizer_steps_ + 1, ": the loss is ", result.loss, " and the gradient norm ",
      result.gradient_norm,
      changed
          ? "; some parameters were changed already (--update_in_backward): go on from the last checkpoint. "
          : "; the parameters were not changed. ",
      not_finite_tensor(*parts_, rank_loss_),
      ". A lower --learning_rate, --max_grad_norm 1, or resuming "
      "from the last checkpoint with another --seed and --resume_with_new_data usually helps"));
}

StepResult TrainingEngine::train_step(const StepBatches& batches, double learning_rate) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(parts_->memory);
  EngineParts& parts = *parts_;
  if (parts.options.update_in_backward) {
    check_update_in_backward(batches);
    wait_for_updates();  // of a step that ended early
    parts.update = {learning_rate, optimizer_steps_ + 1,
                    at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(parts.options.device))};
    StepResult result = backward(batches, 1);
    const auto squares = parts.update.gradient_squares.item<double>();
    result.gradient_norm = std::sqrt(parts.gradients->sharded() ? agreement().sum(squares) : squares);
    if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm)) refuse(result);
    ++optimizer_steps_;
    return result;
  }

  const double loss_scale = parts.loss_scaler ? parts.loss_scaler->scale() : 1.0;
  StepResult result = backward(batches, loss_scale);
  result.gradient_norm = gradient_norm(*parts.gradients, unit_count(), *parts.mesh.all) / loss_scale;
  if (parts.loss_scaler && std::isfinite(result.loss)) {
    // The norm is the same on every rank, so all skip or none.
    result.skipped = !std::isfinite(result.gradient_norm);
    parts.loss_scaler->update(result.skipped);
    if (result.skipped) return result;
  }
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm)) refuse(result);
  const double limit = parts.options.optimizer.max_grad_norm;
  // The small term is torch's, so that clipped runs compare.
  const double clip = limit > 0 ? std::min(1.0, limit / (result.gradient_norm + 1e-6)) : 1.0;
  ++optimizer_steps_;
  update(learning_rate, clip / loss_scale);
  return result;
}

at::Tensor TrainingEngine::unit_gradient(int unit) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(parts_->memory);
  wait_for_updates();
  return parts_->gradients->whole(unit);
}

EvaluationResult TrainingEngine::evaluate(
    const TokenBatch& batch,
    const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(parts_->memory);
  EvaluationResult result;
  result.loss_Bs = parts_->walk->forward(batch, on_logits).to(at::kCPU);
  result.loss_sum = agreement().sum(result.loss_Bs.sum(at::kDouble).item<double>());
  result.target_tokens = count_targets({batch});
  return result;
}

std::vector<std::string> TrainingEngine::state_names() const {
  std::vector<std::string> names{"master"};
  if (!parts_->optimizer) return names;
  for (std::string& name : parts_->optimizer->state_names()) names.push_back(std::move(name));
  return names;
}

at::Tensor TrainingEngine::unit_state(int unit, const std::string& name) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(parts_->memory);
  EngineParts& parts = *parts_;
  wait_for_updates();
  if (name == "master") return parts.parameters->whole_master(unit);
  const at::Tensor share = parts.optimizer->state(unit, name);
  const int64_t elements = parts.layout.units.at(static_cast<size_t>(unit)).elements;
  const bool whole = parts.options.zero == ZeroStage::none || parts.mesh.all->size() == 1;
  return gather_shares(*parts.mesh.all, share, elements, !whole, parts.options.device);
}

void TrainingEngine::restore_unit_state(int unit, const std::string& name, const at::Tensor& whole) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(parts_->memory);
  wait_for_updates();
  if (name == "master") {
    parts_->parameters->set(unit, whole);
    return;
  }
  const UnitShare& share = parts_->shares.at(static_cast<size_t>(unit));
  parts_->optimizer->set_state(unit, name, whole.narrow(0, share.begin, share.elements));
}

TrainingProgress TrainingEngine::progress() const {
  TrainingProgress progress{optimizer_steps_};
  if (parts_->loss_scaler) {
    progress.loss_scale = parts_->loss_scaler->scale();
    progress.clean_steps = parts_->loss_scaler->clean_steps();
  }
  return progress;
}

void TrainingEngine::restore_progress(const TrainingProgress& progress) {
  optimizer_steps_ = progress.optimizer_steps;
  if (parts_->loss_scaler && progress.loss_scale > 0)
    parts_->loss_scaler->restore(progress.loss_scale, progress.clean_steps);
}

double TrainingEngine::model_flops(const TokenBatch& batch) const {
  const ModelConfig& config = parts_->config;
  double pairs = 0;  // of one head, all layers together
  for (int64_t sample = 0; sample < batch.tokens.size(0); ++sample) {
    const std::vector<int64_t> cu_seqlens =
        documents_of(batch.documents, static_cast<size_t>(sample), batch.layout.tokens).cu_seqlens();
    for (size_t i = 1; i < cu_seqlens.size(); ++i)
      pairs += config.attention_pairs(cu_seqlens[i] - cu_seqlens[i - 1]);
  }
  pairs *= parts_->options.sparse.kept(batch.layout.tokens, config.causality);
  const auto tokens = static_cast<double>(batch.tokens.size(0) * batch.layout.tokens);
  return 6.0 * static_cast<double>(config.matmul_parameter_count()) * tokens +
         12.0 * static_cast<double>(config.query_width()) * pairs;
}

}  // namespace trireme
