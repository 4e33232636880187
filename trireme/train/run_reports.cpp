#include <algorithm>
#include <cmath>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/base/sum_of.h"
#include "trireme/data/evaluation_loader.h"
#include "trireme/engine/agree_on_memory_fit.h"
#include "trireme/eval/loss_by_position.h"
#include "trireme/measure/memory_report.h"
#include "trireme/model/rope_override.h"
#include "trireme/train/run_in_progress.h"

namespace trireme {

namespace {

// Of a mixture of experts: MFU counts by it.
std::string multiplied_text(const ModelConfig& config, const ModelLayout& layout) {
  if (config.num_experts == 0) return {};
  return cat("of which a token is multiplied by ", format_count(layout.matmul_parameter_count()), ", ");
}

std::string trained_text(const ModelLayout& layout) {
  if (!layout.adapted()) return {};
  return cat("beside which ", format_count(layout.trained_parameter_count()), " are trained, ");
}

bool trains_norms_or_embedding(const ModelLayout& layout) {
  if (!layout.adapted()) return true;
  const std::optional<int> head = layout.trained_unit(layout.head_unit());
  for (int unit = 0; unit < std::ssize(layout.trained()); ++unit)
    for (const WholeTensor& whole : layout.adapters.whole[static_cast<size_t>(unit)])
      if (head != unit || whole.slot != kOutputMatrix) return true;
  return false;
}

}  // namespace

void RunInProgress::note(const std::string& text) {
  if (progress_)
    progress_->note(text);
  else if (reports() && hooks_.out != nullptr)
    *hooks_.out << text << std::endl;
}

void RunInProgress::report_start() {
  progress_.emplace(*hooks_.out, hooks_.terminal_columns, options_.logging_steps, total_steps(),
                    plan_.count());
  const std::string exchanges = world_.describe_exchanges();
  note(cat("model ", options_.model_dir.string(), ", ", format_count(engine_->layout().parameter_count()),
           " parameters, ", trained_text(engine_->layout()),
           multiplied_text(engine_->config(), engine_->layout()), world_.size(),
           world_.size() == 1 ? " rank" : " ranks", exchanges.empty() ? "" : ", exchanges by ", exchanges));
  report_engine();
  note(cat("MFU is a share of ", format_fixed(peak_.flops_per_second / 1e12, 2), " TFLOP/s a rank (",
           peak_.source, ")"));
  if (const std::string warning = warmup_warning(plan_.stages); !warning.empty()) note(warning);
  const auto stretches = [](const TrainOptions& of_stage) { return of_stage.engine.rope.given(); };
  if (!trains_norms_or_embedding(engine_->layout()) && std::ranges::any_of(plan_.options, stretches))
    note(
        "LoRA trains neither norms nor embeddings here, which LongLoRA (arXiv 2309.12307) found needed for a "
        "longer context; a new run trains them too by --lora_modules_to_save, such as embed_tokens,norm");
}

void RunInProgress::report_engine() {
  note(engine_->description());
  // A run that goes on has it of its checkpoint, by no flag.
  const ModelConfig& config = engine_->config();
  if (options_of(engine_stage_).engine.rope.given() || config.rope.kind != RopeKind::standard)
    note(rope_text(config));
  if (!options_of(engine_stage_).engine.rope.scaling.empty())
    if (const std::string other = published_scaling_note(config); !other.empty()) note(other);
  if (const auto fit = engine_->memory_fit(); fit && !fit->fits()) {
    const PlannedBatch& batch = engine_->options().planned_batch;
    note(shortage_warning(*fit, engine_->forecast_inputs(batch.samples, batch.tokens)));
  }
}

void RunInProgress::report_weights() {
  const WeightsRead& read = engine_->weights_read();
  before_step_ = {{"weights_read_bytes_of_ranks", agreement_.gather_one(read.bytes)},
                  {"weights_seconds", read.seconds}};
}

void RunInProgress::report_resume(int64_t read_bytes, double seconds) {
  const auto of_ranks = agreement_.gather<int64_t>({resume_from_->checked_bytes, read_bytes});
  std::vector<int64_t> checked, read;
  for (const std::vector<int64_t>& of_rank : of_ranks) {
    checked.push_back(of_rank[0]);
    read.push_back(of_rank[1]);
  }
  const int64_t all_bytes = sum_of(checked);
  note(cat("resumed at step ", steps_done_, " of ", total_steps(), " from ", checkpoint_.string(),
           "; of its ", format_bytes(all_bytes), " a rank checked ", format_bytes(std::ranges::max(checked)),
           " and read ", format_bytes(std::ranges::max(read)), " at most"));
  before_step_ = {{"resume_checked_bytes_of_ranks", checked},
                  {"resume_read_bytes_of_ranks", read},
                  {"resume_seconds", seconds}};
}

void RunInProgress::report_saved() {
  const bool best = best_ && checkpoint_ == run_.checkpoint(best_->step);
  note(cat("saved ", checkpoint_.string(),
           best ? cat(", the best so far: ", name_of(options_.metric_for_best_model), " ",
                      format_fixed(best_->value(options_.metric_for_best_model), 4))
                : ""));
}

void RunInProgress::tell_epoch(double before, double after) {
  const auto done = static_cast<int64_t>(after);
  // A step over several epochs is told at the start, as is the last one of a run of epochs.
  if (done != static_cast<int64_t>(before) + 1) return;
  const bool by_epochs = options_.context_stages.empty() && options_.max_steps <= 0;
  const auto planned = static_cast<int64_t>(std::ceil(options_.num_train_epochs));
  if ((steps_done_ == stage().end_step() && after == static_cast<double>(done)) ||
      (by_epochs && done >= planned))
    return;  // there is no next one
  note(cat("epoch ", done + 1, by_epochs ? cat(" of ", planned) : "",
           plan_.count() > 1 ? " of this stage" : "",
           after == static_cast<double>(done) ? " begins after step " : " begins in step ", steps_done_));
}

void RunInProgress::tell_rare_checkpoints(double step_seconds) {
  if (interval_.has_minutes()) return;
  if (const std::string rare = rare_checkpoints_.add_step(step_seconds, steps_done_); !rare.empty())
    note(rare);
}

void RunInProgress::report_memory() {
  const ForecastInputs inputs =
      engine_->forecast_inputs(options_of(stage_).per_device_train_batch_size, stage().sequence_tokens);
  note(cat("memory of rank ", world_.rank(), " at length ", format_count(stage().sequence_tokens),
           ", recompute ", inputs.recompute.description(), "\n",
           memory_report(engine_->memory_account()->state(), memory_forecast(inputs))));
}

bool RunInProgress::evaluate() {
  world_.activity().set_phase(RankPhase::evaluating);
  const int64_t tokens = stage().sequence_tokens;
  EvaluationLoader loader = held_out_samples(stage_, loader_options(stage_));
  // A run that goes on is in the stage of its next step: after a stage's last step nothing is put off.
  const bool may_be_put_off = stage_of_step(plan_.stages, steps_done_) == stage_;
  const auto evaluated = evaluate_loss_by_position(*engine_, loader, power_of_two_edges(tokens),
                                                   [&] { return may_be_put_off && stop_requested(); });
  if (!evaluated) return false;
  const PositionLoss& result = *evaluated;
  eval_loss_ = result.loss();
  Json record = result.to_json();
  record["eval_loss"] = result.loss();
  record["step"] = steps_done_;
  record["packing"] = name_of(options_.samples.packing.kind);
  record.erase("loss");
  keep(record);
  note(cat("step ", steps_done_, "  held-out loss ", format_fixed(result.loss(), 4), " at length ",
           format_count(tokens), " (", result.samples, result.samples == 1 ? " sample)" : " samples)"));
  return true;
}

double RunInProgress::step_flops(int stage, const StepBatches& batches) const {
  double flops = 0;
  for (const TokenBatch& batch : batches) flops += engine_->model_flops(batch);
  const int samples_at_once = world_.size() / sequence_ranks(stage);
  // Documents of the other data-parallel ranks end elsewhere, but as often.
  return flops * samples_at_once;
}

void RunInProgress::report_step(StepRecord& record, const StepResult& result, const StepBatches& batches) {
  const int64_t tokens = stage().sequence_tokens * loader_->rows_per_step();
  const double flops = step_flops(stage_, batches);
  record.step = steps_done_;
  record.epoch = loader_->epochs_done();
  record.stage = stage_;
  record.sequence_tokens = stage().sequence_tokens;
  record.packing = name_of(options_.samples.packing.kind);
  record.target_tokens = result.target_tokens;
  record.loss = result.loss;
  record.gradient_norm = result.gradient_norm;
  record.skipped = result.skipped;
  record.nonfinite_steps = guards_.nonfinite_steps();
  if (options_.engine.precision == Precision::fp16) record.loss_scale = result.loss_scale;
  record.tokens_per_second = static_cast<double>(tokens) / record.seconds;
  record.mfu = flops / (record.seconds * peak_flops_);
  if (record.mfu > 1 && !std::exchange(mfu_warned_, true))
    note(cat(
        "warning: MFU is above 100 % (", format_percent(record.mfu), " in step ", steps_done_,
        "): the peak of ", format_fixed(peak_.flops_per_second / 1e12, 2), " TFLOP/s a rank (", peak_.source,
        ") is too low",
        peak_.source == "measured" ? ", as other programs kept the machine busy while it was measured" : "",
        "; give the device's as --peak_tflops"));
  record.memory_bytes_of_ranks = memory_watch_->look();
  record.memory_bytes = record.memory_bytes_of_ranks[static_cast<size_t>(world_.rank())];
  if (const std::string full =
          memory_watch_->warning(record.memory_bytes_of_ranks, allowed_memory_share(*engine_));
      !full.empty())
    note(full);
  const MemoryState memory = engine_->memory_account()->state();
  record.peak_memory = memory.peak;
  record.host_peak_memory = memory.host.peak;
  record.tokens_seen = tokens_seen_;
  time_left_->add_step(stage_, flops, record.seconds);
  record.eta_seconds = time_left_->seconds(plan_.stages, steps_done_);
  Json told = record.to_json();
  told.update(std::exchange(before_step_, Json::object()));
  keep(told);
}

}  // namespace trireme
