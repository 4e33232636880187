#include "trireme/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/engine/deferred_updates.h"
#include "trireme/engine/model_executor.h"
#include "trireme/engine/not_finite_tensor.h"
#include "trireme/forecast/memory_options.h"
#include "trireme/memory/spill_file.h"
#include "trireme/memory/through_pinned.h"
#include "trireme/shard/loss_scaler.h"
#include "trireme/shard/masters.h"
#include "trireme/shard/optimizer.h"

namespace trireme {

namespace {

double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

}  // namespace

Engine::~Engine() = default;

ForecastInputs Engine::forecast_inputs(int64_t batch, int64_t tokens) const {
  return with_batch(forecast_inputs_, batch, tokens);
}

at::Tensor Engine::read_back(const at::Tensor& values) const {
  const ActivityWait wait(mesh_.all->activity());
  return values.to(at::kCPU);
}

int64_t Engine::count_targets(const StepBatches& batches) {
  int64_t count = 0;
  for (const TokenBatch& batch : batches) count += batch.targets.ge(0).sum().item<int64_t>();
  return agreement().sum(count);
}

void Engine::note_batch(const TokenBatch& batch) {
  const int64_t samples = batch.tokens.size(0), tokens = batch.layout.tokens;
  if (forecast_inputs_.batch == samples && forecast_inputs_.tokens == tokens) return;
  forecast_inputs_ = forecast_inputs(samples, tokens);
  memory_.account->set_options(memory_options(forecast_inputs_));
}

StepResult Engine::backward(const StepBatches& batches, double loss_scale) {
  TRIREME_ASSERT(options_.purpose == Purpose::training, "an engine for evaluation was asked to train");
  for (const TokenBatch& batch : batches) {
    executor_->check(batch);
    note_batch(batch);
  }
  StepResult result;
  result.loss_scale = loss_scale;
  result.target_tokens = count_targets(batches);
  if (result.target_tokens == 0)
    throw DataErrorOnAllRanks(
        cat("optimizer step ", optimizer_steps_ + 1,
            ": none of its tokens has a target (all labels are -100); check the data and their masks"));
  const double mean = 1.0 / static_cast<double>(result.target_tokens);
  gradients_->clear();
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(options_.device));
  for (const TokenBatch& batch : batches) {
    if (&batch == &batches.back()) gradients_->begin_last_micro_batch();
    loss_sum += executor_->forward_backward(batch, mean * loss_scale, *gradients_, *activations_);
  }
  rank_loss_ = read_back(loss_sum).item<double>();
  result.loss = agreement().sum(rank_loss_) * mean;
  // Those of the step before are done, as every unit was used since; those of this step's backward are not.
  wait_for_updates();
  gradients_->finish();
  return result;
}

double Engine::loss_scale() const {
  return loss_scaler_ ? loss_scaler_->scale() : 1;
}

double Engine::offload_wait_seconds() const {
  return (updates_ ? updates_->waited_seconds() : 0) + (spill_ ? spill_->waited_seconds() : 0);
}

void Engine::wait_for_updates() const {
  if (updates_) updates_->wait_all();
}

StepResult Engine::accumulate_gradients(const StepBatches& batches) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(memory_);
  if (options_.update_in_backward)
    throw ConfigError("gradients are not kept with --update_in_backward; leave it out to look at them");
  wait_for_updates();
  // fp16: with the scale of training, so that small gradients are as in training.
  StepResult result = backward(batches, loss_scale());
  if (result.loss_scale != 1) gradients_->multiply(1 / result.loss_scale);
  result.gradient_norm = gradient_norm(*gradients_, unit_count(), *mesh_.all);
  return result;
}

void Engine::step_unit(int unit, at::Tensor& gradient, const StepNumbers& numbers) {
  optimizer_->step(unit, parameters_->open_master(unit), gradient, numbers);
  parameters_->close_master(unit);
}

void Engine::submit_or_run(int unit, std::function<void()> step) {
  if (updates_) {
    updates_->submit(unit, std::move(step));
  } else {
    step();
  }
}

void Engine::step_in_backward(int unit, at::Tensor gradient) {
  // Gradients do not exist together: one at most waits or is at work beside those that the backward pass has
  // open.
  if (updates_) updates_->wait_all();
  auto step = [this, unit, gradient = std::move(gradient)]() mutable {
    at::Tensor on_step_device = [&] {
      const MemoryScope scope(MemoryCategory::gradients);
      backward_update_.gradient_squares += sum_of_squares(gradient);
      const at::Tensor there = std::exchange(gradient, at::Tensor());
      return options_.offload.optimizer == Offload::none ? there : on_host(there, pinned_.get());
    }();
    step_unit(unit, on_step_device, {backward_update_.learning_rate, 1, backward_update_.step});
  };
  submit_or_run(unit, std::move(step));
}

void Engine::update(double learning_rate, double gradient_factor) {
  for (int unit = 0; unit < unit_count(); ++unit) {
    const bool last = unit + 1 == unit_count();
    auto step = [this, unit, last, numbers = StepNumbers{learning_rate, gradient_factor, optimizer_steps_}] {
      if (!last) {
        parameters_->prefetch_master(unit + 1);
        optimizer_->prefetch(unit + 1);
      }
      at::Tensor gradient = [&] {
        const MemoryScope scope(MemoryCategory::gradients);
        return gradients_->summed(unit);
      }();
      step_unit(unit, gradient, numbers);
    };
    submit_or_run(unit, std::move(step));
  }
}

StepResult Engine::skip_or_refuse(StepResult result, OnNonfinite on_nonfinite) {
  wait_for_updates();
  const bool updated = options_.update_in_backward;
  const NotFinite found =
      not_finite_tensor(layout_.trained(), *parameters_, updated ? nullptr : gradients_.get(), *mesh_.all,
                        options_.device, rank_loss_);
  if (on_nonfinite == OnNonfinite::skip && found.in != NotFinite::In::weights && !updated) {
    result.skipped = true;
    result.not_finite = found.text;
    return result;
  }
  throw NotFiniteStep(cat(
      "optimizer step ", optimizer_steps_ + 1, ": the loss is ", without_sign_of_nan(result.loss),
      " and the gradient norm ", without_sign_of_nan(result.gradient_norm),
      updated
          ? "; some parameters were changed already (--update_in_backward): go on from the last checkpoint. "
          : "; the parameters were not changed. ",
      found.text,
      found.in == NotFinite::In::weights
          ? ". Go on from a checkpoint or model whose weights are all finite, with a lower "
            "--learning_rate or --max_grad_norm 1"
          : ". A lower --learning_rate, --max_grad_norm 1, or resuming from the last checkpoint with another "
            "--seed and --resume_with_new_data usually helps"));
}

StepResult Engine::train_step(const StepBatches& batches, double learning_rate, OnNonfinite on_nonfinite) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(memory_);
  if (options_.update_in_backward) {
    TRIREME_ASSERT(batches.size() == 1, "a unit is stepped as soon as its gradient is whole, and there are ",
                   batches.size(), " micro-batches");
    wait_for_updates();  // of a step that ended early
    backward_update_ = {learning_rate, optimizer_steps_ + 1,
                        at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(options_.device))};
    StepResult result = backward(batches, 1);
    const auto squares = read_back(backward_update_.gradient_squares).item<double>();
    result.gradient_norm = std::sqrt(gradients_->sharded() ? agreement().sum(squares) : squares);
    if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))
      return skip_or_refuse(std::move(result), OnNonfinite::stop);
    ++optimizer_steps_;
    return result;
  }

  StepResult result = backward(batches, loss_scale());
  result.gradient_norm = gradient_norm(*gradients_, unit_count(), *mesh_.all) / result.loss_scale;
  if (loss_scaler_ && std::isfinite(result.loss)) {
    // The norm is the same on every rank, so all skip or none.
    result.skipped = !std::isfinite(result.gradient_norm);
    loss_scaler_->update(result.skipped);
    if (result.skipped) return result;
  }
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))
    return skip_or_refuse(std::move(result), on_nonfinite);
  const double limit = options_.optimizer.max_grad_norm;
  // The small term is torch's, so that clipped runs compare.
  const double clip = limit > 0 ? std::min(1.0, limit / (result.gradient_norm + 1e-6)) : 1.0;
  ++optimizer_steps_;
  update(learning_rate, clip / result.loss_scale);
  return result;
}

at::Tensor Engine::unit_gradient(int unit) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(memory_);
  wait_for_updates();
  return gradients_->whole(unit).narrow(0, 0, trained_elements(unit));
}

EvaluationResult Engine::evaluate(
    const TokenBatch& batch,
    const std::function<void(int64_t first_row, const at::Tensor& logits)>& on_logits) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(memory_);
  EvaluationResult result;
  result.loss_Bs = read_back(executor_->forward(batch, on_logits));
  result.loss_sum = agreement().sum(result.loss_Bs.sum(at::kDouble).item<double>());
  result.target_tokens = count_targets({batch});
  return result;
}

std::vector<std::string> Engine::state_names() const {
  std::vector<std::string> names{"master"};
  if (!optimizer_) return names;
  for (const std::string& name : optimizer_->state_names()) names.push_back(name);
  return names;
}

at::Tensor Engine::unit_state(int unit, const std::string& name) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(memory_);
  wait_for_updates();
  const bool sharded = options_.zero != ZeroStage::none && mesh_.all->size() > 1;
  const at::Tensor whole =
      name == "master" ? parameters_->whole_master(unit)
                       : gather_shares(*mesh_.all, optimizer_->state(unit, name), sharded, options_.device);
  return whole.narrow(0, 0, trained_elements(unit));
}

UnitShare Engine::unit_share(int unit) const {
  return share_of(trained_elements(unit), mesh_.all->size(), mesh_.all->rank());
}

void Engine::restore_unit_share(int unit, const std::string& name, const at::Tensor& share) {
  const at::NoGradGuard no_grad;
  const RankMemoryScope counted(memory_);
  wait_for_updates();
  const bool joined = options_.zero == ZeroStage::none && mesh_.all->size() > 1;
  const at::Tensor values = gather_shares(*mesh_.all, share, joined, options_.device);
  // An offloaded state is copied from the device, which waits there for the other ranks' shares.
  std::optional<ActivityWait> wait;
  if (joined) wait.emplace(mesh_.all->activity());
  if (name != "master") {
    optimizer_->set_state(unit, name, values);
    return;
  }
  parameters_->open_master(unit).set(values);
  parameters_->close_master(unit);
}

TrainingProgress Engine::progress() const {
  TrainingProgress progress{optimizer_steps_};
  if (loss_scaler_) {
    progress.loss_scale = loss_scaler_->scale();
    progress.clean_steps = loss_scaler_->clean_steps();
  }
  return progress;
}

void Engine::restore_progress(const TrainingProgress& progress) {
  optimizer_steps_ = progress.optimizer_steps;
  if (loss_scaler_ && progress.loss_scale > 0)
    loss_scaler_->restore(progress.loss_scale, progress.clean_steps);
}

double Engine::model_flops(const TokenBatch& batch) const {
  AttentionPairs pairs;
  for (int64_t sample = 0; sample < batch.tokens.size(0); ++sample) {
    const std::vector<int64_t> cu_seqlens =
        documents_of(batch.documents, static_cast<size_t>(sample), batch.layout.tokens).cu_seqlens();
    for (size_t i = 1; i < cu_seqlens.size(); ++i)
      pairs += config_.attention_pairs(cu_seqlens[i] - cu_seqlens[i - 1], options_.sparse);
  }
  const auto tokens = static_cast<double>(batch.tokens.size(0) * batch.layout.tokens);
  const double of_states = delta_flops_per_token(config_.delta_net, config_.delta_layers);
  return (layout_.flops_per_token() + of_states) * tokens +
         pairs.flops(config_.heads(), config_.heads_of_full_attention());
}

}  // namespace trireme
