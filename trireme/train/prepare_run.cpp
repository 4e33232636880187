#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/data/evaluation_loader.h"
#include "trireme/device/host_memory_limit.h"
#include "trireme/engine/agree_on_recompute.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/check_options.h"
#include "trireme/model/computed_fields.h"
#include "trireme/train/check_options.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/compare_ranks.h"
#include "trireme/train/run_in_progress.h"
#include "trireme/train/trainer_state.h"

namespace trireme {

void RunInProgress::prepare_stages(const ModelConfig& config) {
  const StageDefaults defaults = stage_defaults(options_);
  if (!options_.context_stages.empty()) {
    stages_ = parse_context_stages(options_.context_stages, defaults);
    if (options_.max_steps > 0 && options_.max_steps != total_steps())
      throw ConfigError(cat("--max_steps ", options_.max_steps,
                            " contradicts --context_stages, whose steps sum to ", total_steps(),
                            "; leave --max_steps out"));
  } else {
    int64_t steps = options_.max_steps;
    if (steps <= 0) {
      const PackedLoader counted(data_.train.set, data_.train.range,
                                 loader_options(options_.samples.max_seq_length));
      const double wanted =
          std::ceil(options_.num_train_epochs * static_cast<double>(counted.steps_per_epoch()));
      if (wanted > static_cast<double>(kMostSteps))
        throw ConfigError(cat("--num_train_epochs ", options_.num_train_epochs, " are ", wanted,
                              " steps; a run can have ", format_count(kMostSteps)));
      steps = static_cast<int64_t>(wanted);
    }
    stages_ = single_stage(options_.samples.max_seq_length, steps, defaults);
  }
  const int64_t longest_tokens =
      std::ranges::max(stages_, {}, &ContextStage::sequence_tokens).sequence_tokens;
  check_step_tokens(options_, longest_tokens, sequence_ranks(), host_memory_limit_bytes());
  options_.engine.planned_batch = {options_.per_device_train_batch_size, longest_tokens};
  check_positions(stages_, config, longest_document());
  if (options_.engine.strict_divisible)
    check_divisible(stages_, options_.engine.ulysses, options_.engine.ring);
  // Finds a set too short for a later stage, or a stage too short for its ranks, before training begins.
  for (const ContextStage& stage : stages_)
    PackedLoader(data_.train.set, data_.train.range, loader_options(stage.sequence_tokens));
  if (data_.held_out)
    for (const ContextStage& stage : stages_)
      EvaluationLoader(data_.held_out->set, data_.held_out->range, loader_options(stage.sequence_tokens));
}

int64_t RunInProgress::longest_document() const {
  if (options_.samples.packing == Packing::concat) return std::numeric_limits<int64_t>::max();
  const int64_t longest = data_.train.set->longest_document();
  if (!data_.held_out || data_.held_out->set == data_.train.set) return longest;
  return std::max(longest, data_.held_out->set->longest_document());
}

void RunInProgress::prepare() {
  world_.activity().set_phase(RankPhase::preparing);
  compare_ranks(options_, world_.rank(), agreement_);
  check_options(options_);
  if (options_.tensorboard && options_.logging_dir.empty()) options_.logging_dir = run_.events();
  check_degrees(options_.engine.ulysses, options_.engine.ring, world_.size());
  const ModelConfig config = read_model_config(options_.model_dir);
  check_dropout(options_, config);
  options_.samples = resolve_samples(options_.samples, config, options_.model_dir);
  samples_ = sample_loader_options(options_.samples, config);
  // These checks run before any file of an earlier run changes.
  check_engine_options(options_.engine);
  check_heads(options_.engine, config);
  check_packing(options_.samples.packing, options_.engine);
  agreement_.all_or_none(cat("locking ", run_.path().string()), [&] {
    if (reports()) lock_.emplace(run_.path(), world_.identity().launch_id, notes());
  });
  resume_from_ = choose_checkpoint(options_, run_, world_.identity(), agreement_, notes());
  agreement_.all_or_none(cat("preparing ", run_.path().string()), [&] {
    if (!reports()) return;
    const bool would_replace = !resume_from_ && !run_.list().empty();
    if (would_replace && !options_.overwrite_output_dir)
      throw ConfigError(cat(run_.path().string(),
                            " holds checkpoints of an earlier run: go on with --resume_from_checkpoint true, "
                            "choose another --output_dir, or give --overwrite_output_dir to remove them"));
    // The owner is uncertain: torchrun without --rdzv-id gives no name that all attempts share.
    if (would_replace && world_.identity().restarted() && world_.identity().launch_is_guessed)
      throw ConfigError(cat(
          run_.path().string(),
          " holds checkpoints, and a restarted attempt removes none, for an earlier attempt of this launch "
          "may have written them: begin a new launch with --overwrite_output_dir to remove them, or with "
          "--resume_from_checkpoint true to go on; under torchrun give --rdzv-id a name of the launch"));
    run_.prepare();
  });
  sources_ = look_at_sources(options_, config.vocab_size,
                             resume_from_ ? std::optional(resume_from_->path) : std::nullopt, world_.rank(),
                             agreement_, notes());
  if (resume_from_) compare_with_checkpoint(config);
  data_ =
      open_training_data(sources_, options_.validation_split_percentage, world_.rank(), agreement_, notes());
  prepare_stages(config);
  EngineOptions engine = options_.engine;
  engine.read_weights = !resume_from_;
  engine_ = assemble(world_, options_.model_dir, engine);
  time_left_.emplace(first_step_flops());
  if (resume_from_) resume();
  constexpr double kSecondsAProduct = 0.15;
  peak_ = options_.peak_tflops > 0
              ? PeakRate{options_.peak_tflops * 1e12, "given"}
              : peak_rate(options_.engine.device, options_.engine.precision, kSecondsAProduct);
  peak_flops_ = agreement_.sum(peak_.flops_per_second);
  memory_watch_.emplace(options_.engine.device, memory_room_bytes(options_.engine, world_.identity()),
                        agreement_);
}

void RunInProgress::compare_with_checkpoint(const ModelConfig& config) {
  const std::filesystem::path& checkpoint = resume_from_->path;
  ResumeDecision decision;
  agreement_.all_or_none(cat("comparing this run with ", checkpoint.string()), [&] {
    const Json state = read_json(checkpoint / "trainer_state.json");
    RunFacts before = checkpoint_facts(state, checkpoint);
    RunFacts now;
    now.options = to_json(options_);
    now.train_source = sources_.train_source;
    now.model = computed_fields(config);
    now.ranks = world_.size();
    const ResumedRun resumed = parse_trainer_state(state, checkpoint);
    if (const auto length = length_to_go_on_with(resumed)) {
      now.sequence_tokens = *length;
      before.sequence_tokens = whole_number(resumed.loader, "sequence_tokens", {1},
                                            (checkpoint / "trainer_state.json").string() + ": loader");
    }
    if (options_.keep_global_batch) {
      options_.gradient_accumulation_steps = accumulation_to_keep(before, now);
      check_options(options_);
      now.options = to_json(options_);
    }
    decision = decide_resume(before, now, options_.resume_with_new_data);
  });
  data_anew_ = agreement_.of_rank_0(decision.data_anew ? 1 : 0) != 0;
  for (const std::string& change : decision.told) note("changed option: " + change);
}

std::optional<int64_t> RunInProgress::length_to_go_on_with(const ResumedRun& resumed) const {
  // A run without stages knows its number of steps only with its data; its length is known now.
  const std::vector<ContextStage> stages =
      options_.context_stages.empty()
          ? single_stage(options_.samples.max_seq_length, kMostSteps, stage_defaults(options_))
          : parse_context_stages(options_.context_stages, stage_defaults(options_));
  const int due = stage_of_step(stages, resumed.step);
  if (resumed.step >= stages.back().end_step() || due != resumed.stage) return std::nullopt;
  return stages[static_cast<size_t>(due)].sequence_tokens;
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
  if (steps_done_ > total_steps())
    throw ConfigError(cat("the checkpoint ", checkpoint_.string(), " is at step ", steps_done_,
                          ", beyond this run's last step ", total_steps(),
                          ": give more --max_steps, or an earlier checkpoint"));
  const int due = stage_of_step(stages_, steps_done_);
  if (due != resumed.stage) guards_.stage_begins();
  if (steps_done_ < total_steps() && due == resumed.stage) {
    open_stage(due);
    if (!data_anew_) loader_->restore(resumed.loader);
  } else if (steps_done_ < total_steps() && stages_[static_cast<size_t>(due)].first_step != steps_done_) {
    throw ConfigError(cat("step ", steps_done_, " of the checkpoint lies in stage ", resumed.stage + 1,
                          " of its run, but in the middle of stage ", due + 1,
                          " of these --context_stages: give the stages of that run (later ones may change)"));
  }
  report_resume(read.bytes, seconds);
}

std::vector<double> RunInProgress::first_step_flops() const {
  std::vector<double> flops;
  flops.reserve(stages_.size());
  for (const ContextStage& stage : stages_)
    flops.push_back(step_flops(
        PackedLoader(data_.train.set, data_.train.range, loader_options(stage.sequence_tokens)).next()));
  return flops;
}

}  // namespace trireme
