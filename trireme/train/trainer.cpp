#include "trireme/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "trireme/base/clock.h"
#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/comm/agreement.h"
#include "trireme/data/evaluation_loader.h"
#include "trireme/data/packed_loader.h"
#include "trireme/device/host_memory_limit.h"
#include "trireme/engine/agree_on_recompute.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/check_options.h"
#include "trireme/eval/loss_by_position.h"
#include "trireme/measure/memory_report.h"
#include "trireme/measure/peak_rate.h"
#include "trireme/model/computed_fields.h"
#include "trireme/train/check_options.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/compare_ranks.h"
#include "trireme/train/memory_watch.h"
#include "trireme/train/resume.h"
#include "trireme/train/run_lock.h"
#include "trireme/train/run_records.h"
#include "trireme/train/step_guards.h"
#include "trireme/train/time_left.h"
#include "trireme/train/trainer_state.h"
#include "trireme/train/training_data.h"

namespace trireme {
namespace {

class Trainer {
 public:
  Trainer(World& world, const TrainOptions& options, const TrainHooks& hooks)
      : world_(world),
        options_(options),
        hooks_(hooks),
        run_(options.output_dir),
        guards_(options.guards),
        group_(world.make_group("train", {world.identity().all_ranks()})),
        agreement_(*group_, options.engine.device) {}

  TrainOutcome run();

 private:
  void prepare();
  void prepare_stages(const ModelConfig& config);
  // Reads the checkpoint's small files and decides which options of this run may differ; changes nothing.
  void compare_with_checkpoint(const ModelConfig& config);
  // Sequence length of the stage that the checkpoint's run left unfinished; nullopt where a stage begins.
  std::optional<int64_t> length_to_go_on_with(const ResumedRun& resumed) const;
  void resume();
  // From now on the folder is this run's: removes or renames the files of an earlier run. Collective.
  void begin_records();
  // Renames the checkpoints of an earlier run that are later than the resumed step. On rank 0.
  void abandon_later_checkpoints();
  void open_stage(int stage);
  bool step();  // false: the run went back to an earlier step instead
  bool follow(const GuardFinding& found);
  void roll_back(const std::filesystem::path& checkpoint);
  void tell_epoch(double before, double after);
  void report_memory();
  void evaluate();
  void save();
  double step_flops(const StepBatches& batches) const;
  std::vector<double> first_step_flops() const;
  LoaderOptions loader_options(int64_t sequence_tokens) const;
  // The most tokens over which attention and positions reach; no limit with concat.
  int64_t longest_document() const;
  int sequence_ranks() const { return options_.engine.ulysses * options_.engine.ring; }
  std::string last_good() const {
    return ". The last good checkpoint is " + (checkpoint_.empty() ? "none" : checkpoint_.string());
  }
  const ContextStage& stage() const { return stages_[static_cast<size_t>(stage_)]; }
  int64_t total_steps() const { return stages_.back().end_step(); }
  // True if requested on any rank. Collective.
  bool stop_requested() {
    return agreement_.any(hooks_.stop_requested != nullptr && hooks_.stop_requested->load());
  }
  bool reports() const { return world_.rank() == 0; }
  void note(const std::string& text);
  std::function<void(const std::string&)> notes() {
    return [this](const std::string& text) { note(text); };
  }
  void keep(const Json& record) {
    if (records_) records_->keep(record);
  }

  World& world_;
  TrainOptions options_;
  const TrainHooks& hooks_;
  RunDirectory run_;
  StepGuards guards_;
  std::unique_ptr<Group> group_;
  Agreement agreement_;
  std::optional<MemoryWatch> memory_watch_;
  std::optional<RunLock> lock_;  // rank 0
  std::optional<CheckpointEntry> resume_from_;
  bool data_anew_ = false;  // resumed with other data
  bool records_begun_ = false;
  DataSources sources_;
  TrainingData data_;
  LoaderOptions samples_;  // for any length: from the options and the model
  std::vector<ContextStage> stages_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<PackedLoader> loader_;
  std::optional<RunRecords> records_;     // rank 0
  std::optional<ProgressLine> progress_;  // rank 0, where it reports
  int stage_ = -1;
  bool report_due_ = false;  // --memory_report: after the next step
  int64_t steps_done_ = 0;
  int64_t tokens_seen_ = 0;
  PeakRate peak_;          // of this rank's device
  double peak_flops_ = 0;  // FLOP/s of all ranks
  std::optional<TimeLeft> time_left_;
  double loss_ = 0;
  std::filesystem::path checkpoint_;  // last good one
  bool mfu_warned_ = false;
};

void Trainer::note(const std::string& text) {
  if (progress_)
    progress_->note(text);
  else if (reports() && hooks_.out != nullptr)
    *hooks_.out << text << std::endl;
}

LoaderOptions Trainer::loader_options(int64_t sequence_tokens) const {
  LoaderOptions loader = samples_;
  loader.sequence_tokens = sequence_tokens;
  loader.batch_size = options_.per_device_train_batch_size;
  loader.accumulation_steps = options_.gradient_accumulation_steps;
  loader.dp_size = world_.size() / sequence_ranks();
  loader.ulysses = options_.engine.ulysses;
  loader.ring = options_.engine.ring;
  loader.seed = static_cast<uint64_t>(options_.seed);
  if (loader.masked_tokens) loader.masked_tokens->seed = loader.seed;
  if (engine_) {
    loader.dp_index = engine_->mesh().dp_index;
    loader.sp_rank = engine_->mesh().sp->rank();
  }
  return loader;
}

void Trainer::prepare_stages(const ModelConfig& config) {
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

int64_t Trainer::longest_document() const {
  if (options_.samples.packing == Packing::concat) return std::numeric_limits<int64_t>::max();
  const int64_t longest = data_.train.set->longest_document();
  if (!data_.held_out || data_.held_out->set == data_.train.set) return longest;
  return std::max(longest, data_.held_out->set->longest_document());
}

void Trainer::prepare() {
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
  engine_ = assemble(world_, options_.model_dir, options_.engine);
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

void Trainer::compare_with_checkpoint(const ModelConfig& config) {
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

std::optional<int64_t> Trainer::length_to_go_on_with(const ResumedRun& resumed) const {
  // A run without stages knows its number of steps only with its data; its length is known now.
  const std::vector<ContextStage> stages =
      options_.context_stages.empty()
          ? single_stage(options_.samples.max_seq_length, kMostSteps, stage_defaults(options_))
          : parse_context_stages(options_.context_stages, stage_defaults(options_));
  const int due = stage_of_step(stages, resumed.step);
  if (resumed.step >= stages.back().end_step() || due != resumed.stage) return std::nullopt;
  return stages[static_cast<size_t>(due)].sequence_tokens;
}

void Trainer::resume() {
  Json state;
  agreement_.all_or_none(cat("reading ", resume_from_->path.string()),
                         [&] { state = read_checkpoint(resume_from_->path, *engine_); });
  const ResumedRun resumed = parse_trainer_state(state, resume_from_->path);
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
  note(cat("resumed at step ", steps_done_, " of ", total_steps(), " from ", checkpoint_.string()));
}

void Trainer::begin_records() {
  records_begun_ = true;
  agreement_.all_or_none("beginning the run's config.json and metrics.jsonl", [&] {
    if (!reports()) return;
    if (resume_from_)
      abandon_later_checkpoints();
    else
      run_.clear({sources_.train.prefix, sources_.train.input, sources_.eval ? sources_.eval->prefix : "",
                  options_.eval_file});
    replace_file(run_.config(), to_json(options_).dump(2) + "\n");
    records_.emplace(run_, resume_from_ ? std::optional(steps_done_) : std::nullopt,
                     options_.tensorboard ? options_.logging_dir : "", notes());
  });
}

void Trainer::abandon_later_checkpoints() {
  const std::vector<std::string> names = run_.abandon_after(steps_done_);
  if (names.empty()) return;
  note(cat("this run went back to step ", steps_done_, ": later checkpoints in ", run_.checkpoints().string(),
           " are renamed and no longer read: ", names.front(),
           names.size() > 1 ? cat(" to ", names.back()) : ""));
}

void Trainer::open_stage(int stage) {
  if (stage_ >= 0) guards_.stage_begins();
  stage_ = stage;
  loader_ = std::make_unique<PackedLoader>(data_.train.set, data_.train.range,
                                           loader_options(this->stage().sequence_tokens));
  engine_->memory_account()->reset_peaks();
  report_due_ = options_.memory_report;
}

double Trainer::step_flops(const StepBatches& batches) const {
  double flops = 0;
  for (const TokenBatch& batch : batches) flops += engine_->model_flops(batch);
  const int samples_at_once = world_.size() / sequence_ranks();
  // Documents of the other data-parallel ranks end elsewhere, but as often.
  return flops * samples_at_once;
}

std::vector<double> Trainer::first_step_flops() const {
  std::vector<double> flops;
  flops.reserve(stages_.size());
  for (const ContextStage& stage : stages_)
    flops.push_back(step_flops(
        PackedLoader(data_.train.set, data_.train.range, loader_options(stage.sequence_tokens)).next()));
  return flops;
}

bool Trainer::step() {
  world_.activity().set_phase(RankPhase::training);
  world_.activity().set_step(steps_done_ + 1);
  const double begin = now_seconds();
  const double epochs_before = loader_->epochs_done();
  const StepBatches batches = loader_->next();
  StepRecord record;
  record.learning_rate =
      guards_.rate_factor() * stage().schedule.learning_rate(steps_done_ - stage().first_step);
  StepResult result;
  try {
    result = engine_->train_step(batches, record.learning_rate, guards_.on_nonfinite());
  } catch (const DataError& error) {
    throw DataError(cat("training stopped at step ", steps_done_ + 1, ": ", error.what(),
                        guards_.skipped_before(), last_good()));
  }
  record.seconds = now_seconds() - begin;
  // The step has shown that the run is sound: an earlier run's files in this folder may go.
  if (!records_begun_) begin_records();
  ++steps_done_;
  if (result.not_finite.empty()) loss_ = result.loss;
  const GuardFinding found = guards_.look(steps_done_, result);
  const int64_t tokens = stage().sequence_tokens * loader_->rows_per_step();
  tokens_seen_ += tokens;
  const double flops = step_flops(batches);
  record.step = steps_done_;
  record.epoch = loader_->epochs_done();
  record.stage = stage_;
  record.sequence_tokens = stage().sequence_tokens;
  record.packing = name_of(options_.samples.packing);
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
        "warning: MFU is above 100 % (", format_fixed(100 * record.mfu, 1), " % in step ", steps_done_,
        "): the peak of ", format_fixed(peak_.flops_per_second / 1e12, 2), " TFLOP/s a rank (", peak_.source,
        ") is too low",
        peak_.source == "measured" ? ", as other programs kept the machine busy while it was measured" : "",
        "; give the device's as --peak_tflops"));
  record.memory_bytes_of_ranks = memory_watch_->look();
  record.memory_bytes = record.memory_bytes_of_ranks[static_cast<size_t>(world_.rank())];
  if (const std::string full = memory_watch_->warning(record.memory_bytes_of_ranks); !full.empty())
    note(full);
  const MemoryState memory = engine_->memory_account()->state();
  record.peak_memory = memory.peak;
  record.host_peak_memory = memory.host.peak;
  record.tokens_seen = tokens_seen_;
  time_left_->add_step(stage_, flops, record.seconds);
  record.eta_seconds = time_left_->seconds(stages_, steps_done_);
  keep(record.to_json());
  tell_epoch(epochs_before, record.epoch);
  if (progress_) progress_->show(record);
  if (hooks_.on_step) hooks_.on_step(record);
  if (std::exchange(report_due_, false)) report_memory();
  return follow(found);
}

bool Trainer::follow(const GuardFinding& found) {
  const bool rolls_back = found.verdict == GuardVerdict::roll_back;
  const auto step = guards_.good_step();
  std::filesystem::path good;
  if (step && stage_of_step(stages_, *step) == stage_)
    good = resume_from_ && resume_from_->step == *step ? resume_from_->path : run_.checkpoint(*step);
  if (found.verdict == GuardVerdict::stop || (rolls_back && good.empty()))
    throw DataError(found.text + after_a_spike(good.string()));
  if (!found.text.empty()) note("warning: " + found.text);
  if (rolls_back) roll_back(good);
  return !rolls_back;
}

void Trainer::roll_back(const std::filesystem::path& checkpoint) {
  Json state;
  agreement_.all_or_none(cat("going back to ", checkpoint.string()), [&] {
    verify_checkpoint(checkpoint, {world_.rank(), world_.size()});
    state = read_checkpoint(checkpoint, *engine_);
  });
  const ResumedRun before = parse_trainer_state(state, checkpoint);
  guards_.rolled_back(before, checkpoint, stage_);
  note(cat("rolled back from step ", std::exchange(steps_done_, before.step), " to ", checkpoint.string(),
           ": the data read since is skipped, and later learning rates are multiplied by ",
           number_text(guards_.rate_factor())));
  tokens_seen_ = before.tokens_seen;
  checkpoint_ = checkpoint;
  agreement_.all_or_none("cutting metrics.jsonl", [&] {
    if (!reports()) return;
    abandon_later_checkpoints();
    records_.emplace(run_, steps_done_, options_.tensorboard ? options_.logging_dir : "", notes());
  });
}

void Trainer::tell_epoch(double before, double after) {
  const auto done = static_cast<int64_t>(after);
  // A step over several epochs needs no note.
  if (done != static_cast<int64_t>(before) + 1) return;
  const bool by_epochs = options_.context_stages.empty() && options_.max_steps <= 0;
  const auto planned = static_cast<int64_t>(std::ceil(options_.num_train_epochs));
  if (steps_done_ == stage().end_step() && after == static_cast<double>(done))
    return;  // there is no next one
  note(cat("epoch ", done + 1, by_epochs ? cat(" of ", planned) : "",
           stages_.size() > 1 ? " of this stage" : "",
           after == static_cast<double>(done) ? " begins after step " : " begins in step ", steps_done_));
}

void Trainer::report_memory() {
  const ForecastInputs inputs =
      engine_->forecast_inputs(options_.per_device_train_batch_size, stage().sequence_tokens);
  note(cat("memory of rank ", world_.rank(), " at length ", format_count(stage().sequence_tokens),
           ", recompute ", inputs.recompute.description(), "\n",
           memory_report(engine_->memory_account()->state(), memory_forecast(inputs))));
}

void Trainer::evaluate() {
  world_.activity().set_phase(RankPhase::evaluating);
  const int64_t tokens = stage().sequence_tokens;
  LoaderOptions settings = loader_options(tokens);
  settings.batch_size = 1;
  settings.masked_tokens = samples_.masked_tokens;  // as `eval loss` masks
  EvaluationLoader loader(data_.held_out->set, data_.held_out->range, settings);
  if (options_.max_eval_samples > 0) loader.limit_rows(options_.max_eval_samples);
  const PositionLoss result = evaluate_loss_by_position(*engine_, loader, power_of_two_edges(tokens));
  Json record = result.to_json();
  record["eval_loss"] = result.loss();
  record["step"] = steps_done_;
  record["packing"] = name_of(options_.samples.packing);
  record.erase("loss");
  keep(record);
  note(cat("step ", steps_done_, "  held-out loss ", format_fixed(result.loss(), 4), " at length ",
           format_count(tokens), " (", result.samples, " samples)"));
}

void Trainer::save() {
  world_.activity().set_phase(RankPhase::saving);
  guards_.saving(steps_done_);
  Json state = {{"step", steps_done_},
                {"total_steps", total_steps()},
                {"stage", stage_},
                {"loader", loader_->state()},
                {"tokens_seen", tokens_seen_},
                {"rng", {{"seed", options_.seed}}},
                {"ranks", world_.size()},
                {"launch", world_.identity().launch_id},
                {"data", {{"train", sources_.train_source}, {"eval", sources_.eval_source}}},
                {"loss", loss_},
                {"options", to_json(options_)}};
  if (const Json guards = guards_.state(); !guards.is_null()) state["guards"] = guards;
  // While a spike is suspected, the checkpoint from before it stays.
  const int64_t limit = guards_.calm() ? options_.save_total_limit : 0;
  try {
    checkpoint_ =
        save_checkpoint(run_, {steps_done_, state, options_.model_dir}, *engine_, agreement_, limit);
  } catch (const DataError& error) {
    throw DataError(
        cat("could not save the checkpoint of step ", steps_done_, ": ", error.what(), last_good()));
  }
  note(cat("saved ", checkpoint_.string()));
}

TrainOutcome Trainer::run() {
  prepare();
  if (reports() && hooks_.out != nullptr) {
    progress_.emplace(*hooks_.out, hooks_.terminal_columns, options_.logging_steps, total_steps(),
                      static_cast<int>(stages_.size()));
    note(cat("model ", options_.model_dir.string(), ", ", format_count(engine_->layout().parameter_count()),
             " parameters, ", world_.size(), world_.size() == 1 ? " rank" : " ranks"));
    note(engine_->description());
    note(cat("MFU is a share of ", format_fixed(peak_.flops_per_second / 1e12, 2), " TFLOP/s a rank (",
             peak_.source, ")"));
    if (const std::string warning = warmup_warning(stages_); !warning.empty()) note(warning);
    if (const auto choice = engine_->recompute_choice(); choice && !choice->fits()) {
      const PlannedBatch& batch = options_.engine.planned_batch;
      note(shortage_warning(*choice, engine_->forecast_inputs(batch.samples, batch.tokens)));
    }
  }
  if (hooks_.on_training_begins) hooks_.on_training_begins();
  bool stopped = false;
  while (steps_done_ < total_steps() && !stopped) {
    const int due = stage_of_step(stages_, steps_done_);
    if (due != stage_) open_stage(due);
    if (!step()) {  // the checkpoint that it went back to is there already
      stopped = stop_requested();
      continue;
    }
    const bool last = steps_done_ == total_steps();
    if (data_.held_out && (last || (options_.eval_steps > 0 && steps_done_ % options_.eval_steps == 0)))
      evaluate();
    stopped = stop_requested() && !last;
    if (!last && !stopped && (options_.save_steps <= 0 || steps_done_ % options_.save_steps != 0)) continue;
    save();
    // If the stop came during the save, all is saved: take no further step.
    if (!last && !stopped) stopped = stop_requested();
  }
  world_.activity().set_phase(RankPhase::ending);
  if (progress_) progress_->finish();
  return {steps_done_, total_steps(), stopped, loss_, checkpoint_};
}

}  // namespace

TrainOutcome train(World& world, const TrainOptions& options, const TrainHooks& hooks) {
  return Trainer(world, options, hooks).run();
}

}  // namespace trireme
