#include <algorithm>

#include "trireme/base/clock.h"
#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/model/computed_fields.h"
#include "trireme/model/lora_files.h"
#include "trireme/train/base_weights.h"
#include "trireme/train/check_run.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/continued_run.h"
#include "trireme/train/run_in_progress.h"
#include "trireme/train/trainer_state.h"

namespace trireme {

void RunInProgress::compare_with_checkpoint(const ModelConfig& config) {
  const std::filesystem::path& checkpoint = resume_from_->path;
  ResumeDecision decision;
  agreement_.all_or_none(cat("comparing this run with ", checkpoint.string()), [&] {
    check_base_weights(checkpoint, options_.model_dir);
    const Json state = read_json(checkpoint / kTrainerStateFile);
    RunFacts before = checkpoint_facts(state, checkpoint);
    RunFacts now;
    now.ranks = world_.size();
    const ResumedRun resumed = parse_trainer_state(state, checkpoint);
    // What this run trains on, and how, where the checkpoint's run was.
    const int stage = std::min(resumed.stage, plan_.count() - 1);
    const int64_t asked = options_of(stage).gradient_accumulation_steps;
    if (options_.keep_global_batch) {
      // As that stage took before; it and those to come change by its factor.
      now.options = to_json(options_of(stage));
      scale_accumulation(options_, accumulation_to_keep(before, now),
                         options_of(stage).gradient_accumulation_steps, stage);
      plan_ = plan_run(options_, config, world_);
    }
    now.options = to_json(options_of(stage));
    now.steps_follow_batch = plan_.counted_stage && *plan_.counted_stage <= stage;
    now.train_source = sources_of(stage).train_source;
    const ModelConfig& of_stage = plan_.configs[static_cast<size_t>(stage)];
    now.model = computed_fields(of_stage);
    now.model["lora"] = lora_of_run(of_stage, options_of(stage).engine.lora);
    if (const auto length = length_to_go_on_with(resumed); length && !resumed.loader.is_null()) {
      now.sequence_tokens = *length;
      before.sequence_tokens = whole_number(resumed.loader, "sequence_tokens", {1},
                                            (checkpoint / kTrainerStateFile).string() + ": loader");
    }
    decision = decide_resume(before, now, options_.resume_with_new_data);
    const char* const accumulation = "gradient_accumulation_steps";
    // What differs from the checkpoint's is told already.
    if (const int64_t kept = options_of(stage).gradient_accumulation_steps;
        kept != asked && before.options.value(accumulation, Json()) == kept)
      decision.told.push_back(cat(accumulation, " ", asked, " -> ", kept,
                                  ", as the checkpoint's run had, by --keep_global_batch"));
  });
  data_anew_ = agreement_.of_rank_0(decision.data_anew ? 1 : 0) != 0;
  for (const std::string& change : decision.told) note("changed option: " + change);
}

std::optional<int64_t> RunInProgress::length_to_go_on_with(const ResumedRun& resumed) const {
  const int due = stage_of_step(plan_.stages, resumed.step);
  if (resumed.step >= total_steps() || due != resumed.stage) return std::nullopt;
  return plan_.stages[static_cast<size_t>(due)].sequence_tokens;
}

void RunInProgress::resume() {
  const double begin = now_seconds();
  const CheckpointRead read = read_checkpoint(resume_from_->path, *engine_);
  const double seconds = now_seconds() - begin;
  const ResumedRun resumed = parse_trainer_state(read.trainer_state, resume_from_->path);
  steps_done_ = resumed.step;
  tokens_seen_ = resumed.tokens_seen;
  checkpoint_ = resume_from_->path;
  guards_.restore(resumed, checkpoint_);
  restore_length_change(resumed, checkpoint_);
  restore_best(resumed, read.trainer_state);
  if (steps_done_ > total_steps())
    throw ConfigError(cat("the checkpoint ", checkpoint_.string(), " is at step ", steps_done_,
                          ", beyond this run's last step ", total_steps(),
                          ": give more --max_steps, or an earlier checkpoint"));
  const int due = stage_of_step(plan_.stages, steps_done_);
  if (due != resumed.stage) guards_.stage_begins();
  evaluation_due_ = resumed.evaluation_due && due == resumed.stage && data_of(due).held_out;
  if (steps_done_ < total_steps() && due == resumed.stage) {
    open_stage(due);
    // The stage may begin elsewhere than in the run before.
    overflowed_steps_ = std::min(resumed.overflowed_steps, steps_done_ - stage().first_step);
    if (resumed.loader.is_null())
      note("the checkpoint does not tell the place in the data: the data begins at its beginning");
    else if (!data_anew_)
      loader_->restore(resumed.loader);
  } else if (steps_done_ < total_steps() &&
             plan_.stages[static_cast<size_t>(due)].first_step != steps_done_) {
    throw ConfigError(cat("step ", steps_done_, " of the checkpoint lies in stage ", resumed.stage + 1,
                          " of its run, but in the middle of stage ", due + 1,
                          " of these --context_stages: give the stages of that run (later ones may change)"));
  }
  report_resume(read.bytes, seconds);
  if (steps_done_ == total_steps())
    note(cat("all ", steps_done_, " steps are done; to train on give more ",
             options_.context_stages.empty() ? "--max_steps, or --num_train_epochs"
                                             : "steps in --context_stages"));
}

void RunInProgress::restore_length_change(const ResumedRun& resumed,
                                          const std::filesystem::path& checkpoint) {
  if (resumed.length_change.is_null()) return;
  length_change_.restore(resumed.length_change,
                         (checkpoint / kTrainerStateFile).string() + ": length_change");
}

void RunInProgress::find_chats() {
  std::vector<std::filesystem::path> sets;  // the last stage's first: of templates the model is left with its
  for (int stage = plan_.count() - 1; stage >= 0; --stage)
    if (const auto& set = data_of(stage).train.set->path(); !contains(sets, set)) sets.push_back(set);
  chats_ = chat_format_of_sets(sets, notes());
  const std::filesystem::path begun = resume_from_          ? resume_from_->path
                                      : !continued_.empty() ? continued_
                                                            : options_.engine.lora.adapter;
  if (!begun.empty() && !join(chats_, saved_chat_format(begun)))
    note(cat("the chats of this run's sets are written by another chat template than those before (",
             begun.string(), "): that of the sets is taken"));
  chat_files_ = chat_files(chats_, options_.model_dir,
                           !begun.empty() && is_adapter_folder(begun) ? begun : std::filesystem::path());
  for (const std::string& text : chat_files_.notes) note("checkpoints: " + text);
}

void RunInProgress::find_continued() {
  if (resume_from_ || options_.continue_run.empty()) return;
  agreement_.all_or_none(cat("looking at ", options_.continue_run.string()), [&] {
    continued_ = continued_checkpoint(options_.continue_run);
    check_continued(options_, continued_);
    check_base_weights(continued_, options_.model_dir);
  });
  CheckpointEntry entry{.path = continued_};
  check_whole(entry, world_.identity(), agreement_);
}

void RunInProgress::begin_from_continued() {
  const Json state = read_checkpoint(continued_, *engine_).trainer_state;
  const ResumedRun before = parse_trainer_state(state, continued_);
  restore_length_change(before, continued_);
  const int64_t planned = whole_number(state, "total_steps", {0}, continued_.string(), before.step);
  note(cat("begins with weights and optimizer states of ", continued_.string(), ", after ", before.step,
           " of the ", planned, " steps of its run"));
}

}  // namespace trireme
