#include "trireme/train/trainer.h"

#include <memory>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/sizes.h"
#include "trireme/engine/assemble.h"
#include "trireme/train/base_weights.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/run_in_progress.h"
#include "trireme/train/trainer_state.h"

namespace trireme {

void RunInProgress::begin_records() {
  records_begun_ = true;
  agreement_.all_or_none("beginning the run's config.json and metrics.jsonl", [&] {
    if (!reports()) return;
    if (resume_from_) {
      abandon_later_checkpoints();
    } else {
      std::vector<std::filesystem::path> kept{options_.eval_file};
      for (const DataSources& sources : sources_) {
        kept.insert(kept.end(), {sources.train.prefix, sources.train.input});
        if (sources.eval) kept.push_back(sources.eval->prefix);
      }
      run_.clear(kept);
    }
    TrainOptions replayed = options_;
    replayed.engine.lora = lora_asked_;  // the folder of --adapter says the rest
    replace_file(run_.config(), to_json(replayed).dump(2) + "\n");
    records_.emplace(run_, resume_from_ ? std::optional(steps_done_) : std::nullopt,
                     options_.tensorboard ? options_.logging_dir : "", notes(),
                     evaluation_due_ ? LastEvaluation::due : LastEvaluation::kept);
  });
}

void RunInProgress::abandon_later_checkpoints() {
  const std::vector<std::string> names = run_.abandon_after(steps_done_);
  if (names.empty()) return;
  note(cat("this run went back to step ", steps_done_, ": later checkpoints in ", run_.checkpoints().string(),
           " are renamed and no longer read: ", names.front(),
           names.size() > 1 ? cat(" to ", names.back()) : ""));
}

void RunInProgress::open_stage(int stage) {
  if (!plan_.engine_changes(engine_stage_, stage).empty()) assemble_anew(stage);
  if (stage_ >= 0) guards_.stage_begins();
  stage_ = stage;
  rare_checkpoints_.stage_begins(saved_anyway());
  overflowed_steps_ = 0;
  const TokenSource& tokens = data_of(stage).train;
  loader_ = std::make_unique<PackedLoader>(tokens.set, tokens.range, loader_options(stage));
  length_change_.stage_begins(this->stage().sequence_tokens, this->stage().steps);
  engine_->memory_account()->reset_peaks();
  report_due_ = options_.memory_report;
}

void RunInProgress::assemble_anew(int stage) {
  look_after_save(/*to_end=*/true);
  if (checkpoint_ != run_.checkpoint(steps_done_)) save(/*in_background=*/false);
  world_.activity().set_phase(RankPhase::preparing);
  note(cat("stage ", stage + 1, " has ", plan_.engine_changes(engine_stage_, stage),
           ": the engine is assembled anew and goes on from ", checkpoint_.string()));
  engine_.reset();
  EngineOptions engine = engine_options(stage);
  engine.read_weights = false;
  engine_ = assemble(world_, options_.model_dir, engine);
  engine_stage_ = stage;
  read_checkpoint(checkpoint_, *engine_);
  report_engine();
}

bool RunInProgress::step() {
  world_.activity().set_phase(RankPhase::training);
  world_.activity().set_step(steps_done_ + 1);
  const double begin = now_seconds();
  const double epochs_before = loader_->epochs_done();
  StepRecord record;
  record.learning_rate = guards_.rate_factor() *
                         stage().schedule.learning_rate(steps_done_ - stage().first_step - overflowed_steps_);
  StepBatches batches;
  StepResult result;
  try {
    batches = loader_->next();
    result = engine_->train_step(batches, record.learning_rate, guards_.on_nonfinite());
  } catch (const DataError& error) {
    std::string not_saved;
    try {
      // There is time for a save that is under way.
      if (world_.size() == 1 || dynamic_cast<const DataErrorOnAllRanks*>(&error) != nullptr)
        look_after_save(/*to_end=*/true);
    } catch (const Error& of_save) {
      not_saved = cat("; meanwhile it ", of_save.what());
    }
    throw DataError(cat("training stopped at step ", steps_done_ + 1, ": ", error.what(),
                        guards_.skipped_before(), not_saved.empty() ? last_good() : not_saved));
  }
  record.seconds = now_seconds() - begin;
  // The step has shown that the run is sound: an earlier run's files in this folder may go.
  if (!records_begun_) begin_records();
  ++steps_done_;
  eval_loss_.reset();
  std::optional<std::string> after_change;
  if (result.not_finite.empty()) {
    loss_ = result.loss;
    after_change = length_change_.add(loss_);
    if (result.skipped) ++overflowed_steps_;
  }
  const GuardFinding found = guards_.look(steps_done_, result);
  tokens_seen_ += stage().sequence_tokens * loader_->rows_per_step();
  report_step(record, result, batches);
  tell_epoch(epochs_before, record.epoch);
  if (progress_) progress_->show(record);
  if (after_change) note(*after_change);
  tell_rare_checkpoints(record.seconds);
  if (hooks_.on_step) hooks_.on_step(record);
  if (std::exchange(report_due_, false)) report_memory();
  return follow(found);
}

bool RunInProgress::follow(const GuardFinding& found) {
  const bool rolls_back = found.verdict == GuardVerdict::roll_back;
  if (found.verdict != GuardVerdict::go_on) look_after_save(/*to_end=*/true);
  const auto step = guards_.good_step();
  std::filesystem::path good;
  if (step && stage_of_step(plan_.stages, *step) == stage_)
    good = resume_from_ && resume_from_->step == *step ? resume_from_->path : run_.checkpoint(*step);
  if (found.verdict == GuardVerdict::stop || (rolls_back && good.empty()))
    throw DataError(found.text + after_a_spike(good.string()));
  if (!found.text.empty()) note("warning: " + found.text);
  if (rolls_back) roll_back(good);
  return !rolls_back;
}

void RunInProgress::roll_back(const std::filesystem::path& checkpoint) {
  agreement_.all_or_none(cat("going back to ", checkpoint.string()), [&] {
    verify_checkpoint(checkpoint, {world_.rank(), world_.size()});
  });
  const Json state = read_checkpoint(checkpoint, *engine_).trainer_state;
  const ResumedRun before = parse_trainer_state(state, checkpoint);
  guards_.rolled_back(before, checkpoint, stage_);
  restore_length_change(before, checkpoint);
  length_change_.stage_begins(stage().sequence_tokens, stage().steps);  // it may have been saved before
  note(cat("rolled back from step ", std::exchange(steps_done_, before.step), " to ", checkpoint.string(),
           ": the data read since is skipped, and later learning rates are multiplied by ",
           number_text(guards_.rate_factor())));
  tokens_seen_ = before.tokens_seen;
  overflowed_steps_ = before.stage == stage_ ? before.overflowed_steps : 0;
  checkpoint_ = checkpoint;
  restore_best(before, state);
  agreement_.all_or_none("cutting metrics.jsonl", [&] {
    if (!reports()) return;
    abandon_later_checkpoints();
    records_.emplace(run_, steps_done_, options_.tensorboard ? options_.logging_dir : "", notes());
  });
}

void RunInProgress::restore_best(const ResumedRun& resumed, const Json& trainer_state) {
  best_.reset();
  if (options_.metric_for_best_model == BestMetric::none || !resumed.best) return;
  const Json* data = find_field(trainer_state, "data", kTrainerStateFile);
  // Rank 0 knows the held-out text; what this run saved itself is of its data.
  const bool is_own = !resume_from_ || checkpoint_ != resume_from_->path;
  const Json before = data == nullptr ? Json() : data->value("eval", Json());
  const Json& now = sources_of(std::min(resumed.stage, plan_.count() - 1)).eval_source;
  const bool same_text =
      before == now || (before.is_object() && now.is_object() && before.contains("digest") &&
                        before["digest"] == now.value("digest", Json()));
  const Json* options = find_field(trainer_state, "options", kTrainerStateFile);
  const bool as_many = options != nullptr && options->is_object() &&
                       options->value("max_eval_samples", Json()) == options_.max_eval_samples;
  const bool same_data = agreement_.of_rank_0(is_own || (!data_anew_ && same_text && as_many) ? 1 : 0) != 0;
  const bool there = holds_checkpoint(resumed.best->step);
  if (there && same_data)
    best_ = resumed.best;
  else
    note(cat("the best checkpoint so far, of step ", resumed.best->step,
             ", is not compared with those to come: ",
             there ? "the held-out samples are others" : "it is not in " + run_.checkpoints().string()));
}

bool RunInProgress::holds_checkpoint(int64_t step) {
  bool there = false;
  agreement_.all_or_none(cat("looking for the checkpoint of step ", step),
                         [&] { there = reports() && is_there(run_.checkpoint(step)); });
  return agreement_.any(there);
}

void RunInProgress::note_best() {
  if (options_.metric_for_best_model != BestMetric::none && eval_loss_ &&
      is_better(*eval_loss_, stage_, best_))
    best_ = {steps_done_, stage_, *eval_loss_};
}

bool RunInProgress::evaluate_or_save() {
  try {
    return evaluate();
  } catch (const std::exception&) {  // libtorch's, too: memory may have run out
    if (world_.size() > 1) throw;    // ranks cannot save together once one has failed
    try {
      save(/*in_background=*/false);
    } catch (const Error& of_save) {
      note(cat("warning: ", of_save.what()));
    }
    throw;
  }
}

void RunInProgress::evaluate_first() {
  if (stage_ < 0) open_stage(stage_of_step(plan_.stages, steps_done_));
  begin_records();
  evaluation_due_ = !evaluate();
  if (holds_checkpoint(steps_done_)) note_best();  // else the run goes on from a checkpoint of another folder
}

void RunInProgress::save(bool in_background) {
  world_.activity().set_phase(RankPhase::saving);
  const double begin = now_seconds();
  look_after_save(/*to_end=*/true);
  guards_.saving(steps_done_);
  note_best();
  Json state = {
      {"step", steps_done_},
      {"total_steps", total_steps()},
      {"stage", stage_},
      {"loader", loader_->state()},
      {"tokens_seen", tokens_seen_},
      {"overflowed_steps", overflowed_steps_},
      {"evaluation_due", evaluation_due_},
      {"rng", {{"seed", options_.seed}}},
      {"ranks", world_.size()},
      {"launch", world_.identity().launch_id},
      {"data", {{"train", sources_of(stage_).train_source}, {"eval", sources_of(stage_).eval_source}}},
      {"loss", loss_},
      {"length_change", length_change_.state()},
      {"options", to_json(options_of(stage_))}};
  add_sources_of_stages(state["data"]);
  if (!base_weights_.is_null()) state[kBaseWeightsField] = base_weights_;
  if (!chats_.empty()) write_chat_format(chats_, state[kSavedChats]);
  if (const Json guards = guards_.state(); !guards.is_null()) state["guards"] = guards;
  if (best_) state["best"] = to_json(best_, options_.metric_for_best_model);
  // While a spike is suspected, the checkpoint from before it stays.
  const int64_t limit = guards_.calm() ? options_.save_total_limit : 0;
  const CheckpointContents contents{steps_done_, state, options_.model_dir,
                                    best_ ? std::optional(best_->step) : std::nullopt, chat_files_.texts};
  name_if_not_saved(steps_done_, [&] {
    if (in_background)
      background_save_.begin(contents, *engine_, limit);
    else
      checkpoint_ = save_checkpoint(run_, contents, *engine_, agreement_, limit);
  });
  before_step_["save_seconds"] = now_seconds() - begin;
  interval_.begin();
  if (!in_background) report_saved();
}

bool RunInProgress::save_is_due() {
  if (interval_.is_due_after_step(steps_done_)) return true;
  // Training would wait for the save that is under way.
  if (!interval_.has_minutes() || background_save_.pending()) return false;
  return agreement_.any(reports() && interval_.is_due_by_clock());
}

int64_t RunInProgress::saved_anyway() const {
  for (int next = stage_ + 1; next < plan_.count(); ++next)
    if (!plan_.engine_changes(engine_stage_, next).empty())
      return plan_.stages[static_cast<size_t>(next)].first_step;
  return total_steps();
}

void RunInProgress::name_if_not_saved(int64_t step, const std::function<void()>& work) const {
  const auto text = [&](const Error& error) {
    return cat("could not save the checkpoint of step ", step, ": ", error.what(), last_good());
  };
  try {
    work();
  } catch (const DataError& error) {
    throw DataError(text(error));
  } catch (const SystemFault& error) {
    throw SystemFault(text(error));
  }
}

void RunInProgress::look_after_save(bool to_end) {
  name_if_not_saved(background_save_.step(), [&] {
    const auto saved = to_end ? background_save_.finish() : background_save_.look();
    if (!saved) return;
    checkpoint_ = saved->checkpoint;
    before_step_["save_background_seconds"] = saved->seconds;
    report_saved();
  });
}

TrainOutcome RunInProgress::run() {
  prepare();
  if (reports() && hooks_.out != nullptr) report_start();
  if (hooks_.on_training_begins) hooks_.on_training_begins();
  if (evaluation_due_) evaluate_first();
  interval_.begin();
  bool stopped = evaluation_due_;
  while (steps_done_ < total_steps() && !stopped) {
    const int due = stage_of_step(plan_.stages, steps_done_);
    if (due != stage_) open_stage(due);
    if (!step()) {  // the checkpoint that it went back to is there already
      stopped = stop_requested();
      continue;
    }
    look_after_save(/*to_end=*/false);
    const bool last = steps_done_ == total_steps();
    evaluation_due_ = data_of(stage_).held_out &&
                      (last || (options_.eval_steps > 0 && steps_done_ % options_.eval_steps == 0));
    if (evaluation_due_) evaluation_due_ = !evaluate_or_save();
    stopped = evaluation_due_ || (stop_requested() && !last);
    if (!last && !stopped && !save_is_due()) continue;
    save(options_.engine.save_in_background && !last && !stopped);
    // If the stop came during the save, all is saved: take no further step.
    if (!last && !stopped) stopped = stop_requested();
  }
  look_after_save(/*to_end=*/true);
  if (best_)
    note(cat("best checkpoint: ", run_.checkpoint(best_->step).string(), " (",
             name_of(options_.metric_for_best_model), " ",
             format_fixed(best_->value(options_.metric_for_best_model), 4), ")"));
  world_.activity().set_phase(RankPhase::ending);
  if (progress_) progress_->finish();
  return {steps_done_, total_steps(), stopped, loss_, checkpoint_};
}

TrainOutcome train(World& world, const TrainOptions& options, const TrainHooks& hooks) {
  return RunInProgress(world, options, hooks).run();
}

}  // namespace trireme
