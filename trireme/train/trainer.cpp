#include "trireme/train/trainer.h"

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/data/evaluation_walk.h"
#include "trireme/data/packed_loader.h"
#include "trireme/device/peak_memory.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/check_options.h"
#include "trireme/engine/settle_recompute.h"
#include "trireme/eval/loss_by_position.h"
#include "trireme/measure/memory_report.h"
#include "trireme/measure/peak_rate.h"
#include "trireme/train/agreement.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/durable_file.h"
#include "trireme/train/resume.h"
#include "trireme/train/tensorboard_events.h"
#include "trireme/train/time_left.h"
#include "trireme/train/training_data.h"

namespace trireme {
namespace {

std::unique_ptr<Group> everyone(World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group("train", {ranks});
}

class Trainer {
 public:
  Trainer(World& world, const TrainOptions& options, const TrainHooks& hooks)
      : world_(world),
        options_(options),
        hooks_(hooks),
        run_(options.output_dir),
        group_(everyone(world)),
        agreement_(*group_, options.engine.device) {}

  TrainOutcome run();

 private:
  void prepare();
  void prepare_stages(const ModelConfig& config);
  void resume();
  void open_stage(int stage);
  void step();
  void report_memory();
  void evaluate();
  void save();
  double step_flops(const StepBatches& batches) const;
  std::vector<double> first_step_flops() const;
  LoaderOptions loader_options(int64_t sequence_tokens) const;
  // Tokens that attention and positions reach over at most; with concat, as many as there are.
  int64_t longest_document() const;
  int sequence_ranks() const { return options_.engine.ulysses * options_.engine.ring; }
  const ContextStage& stage() const { return stages_[static_cast<size_t>(stage_)]; }
  int64_t total_steps() const { return stages_.back().end_step(); }
  bool reports() const { return world_.rank() == 0; }
  void note(const std::string& text);
  // Where the run's numbers are kept; what cannot be written is told once.
  void keep(const Json& record);

  World& world_;
  TrainOptions options_;
  const TrainHooks& hooks_;
  RunDirectory run_;
  std::unique_ptr<Group> group_;
  Agreement agreement_;
  std::optional<CheckpointEntry> resume_from_;
  TrainingData data_;
  LoaderOptions samples_;  // of any length: what follows from the options and the model
  std::vector<ContextStage> stages_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<PackedLoader> loader_;
  std::optional<MetricsLog> metrics_;        // rank 0
  std::optional<TensorBoardEvents> events_;  // rank 0, where they are written
  std::optional<ProgressLine> progress_;     // rank 0, where it reports
  int stage_ = -1;
  bool report_due_ = false;  // --memory_report: after the next step
  int64_t steps_done_ = 0;
  int64_t tokens_seen_ = 0;
  PeakRate peak_;          // of this rank's device
  double peak_flops_ = 0;  // FLOP/s of all ranks
  std::optional<TimeLeft> time_left_;
  double loss_ = 0;
  std::filesystem::path checkpoint_;  // last good one
  bool metrics_warned_ = false;
  bool events_warned_ = false;
};

void Trainer::note(const std::string& text) {
  if (progress_)
    progress_->note(text);
  else if (reports() && hooks_.out != nullptr)
    *hooks_.out << text << std::endl;
}

void Trainer::keep(const Json& record) {
  if (metrics_ && !metrics_->write(record) && !std::exchange(metrics_warned_, true))
    note(cat("warning: cannot write to ", run_.metrics().string(), "; is the disk full?"));
  if (!events_) return;
  const std::string problem = events_->write(record);
  if (!problem.empty() && !std::exchange(events_warned_, true))
    note(cat("warning: cannot write TensorBoard's event file in ", options_.logging_dir.string(), ": ",
             problem, "; training goes on, and points are left out"));
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
      const PackedLoader counted(data_.train.set, data_.train.range, loader_options(options_.max_seq_length));
      steps = static_cast<int64_t>(
          std::ceil(options_.num_train_epochs * static_cast<double>(counted.steps_per_epoch())));
    }
    stages_ = single_stage(options_.max_seq_length, steps, defaults);
  }
  int64_t longest_tokens = 0;
  for (const ContextStage& stage : stages_) longest_tokens = std::max(longest_tokens, stage.sequence_tokens);
  options_.engine.planned_batch = {options_.per_device_train_batch_size, longest_tokens};
  check_positions(stages_, config, longest_document());
  if (options_.engine.strict_divisible)
    check_divisible(stages_, options_.engine.ulysses, options_.engine.ring);
  // A set too short for a later stage, or a stage too short for its ranks, is known now, not after the
  // earlier ones.
  for (const ContextStage& stage : stages_)
    PackedLoader(data_.train.set, data_.train.range, loader_options(stage.sequence_tokens));
  if (data_.held_out)
    for (const ContextStage& stage : stages_)
      EvaluationWalk(data_.held_out->set, data_.held_out->range, loader_options(stage.sequence_tokens));
}

int64_t Trainer::longest_document() const {
  if (options_.samples.packing == Packing::concat) return std::numeric_limits<int64_t>::max();
  int64_t longest = 0;
  const auto look_at = [&](const IndexedDataset& set) {
    for (int64_t document = 0; document < set.documents(); ++document)
      longest = std::max(longest, set.document_begin(document + 1) - set.document_begin(document));
  };
  look_at(*data_.train.set);
  if (data_.held_out && data_.held_out->set != data_.train.set) look_at(*data_.held_out->set);
  return longest;
}

void Trainer::prepare() {
  check_options(options_);
  if (options_.tensorboard && options_.logging_dir.empty()) options_.logging_dir = run_.events();
  check_degrees(options_.engine.ulysses, options_.engine.ring, world_.size());
  const ModelConfig config = read_model_config(options_.model_dir);
  options_.samples = resolve_samples(options_.samples, config, options_.model_dir);
  samples_ = sample_loader_options(options_.samples, config);
  // Before anything of an earlier run is touched.
  check_engine_options(options_.engine);
  check_heads(options_.engine, config);
  check_packing(options_.samples.packing, options_.engine);
  resume_from_ =
      choose_checkpoint(options_, run_, reports(), agreement_, [&](const std::string& text) { note(text); });
  agreement_.all_or_none(cat("preparing ", run_.path().string()), [&] {
    if (!reports()) return;
    if (!resume_from_ && !run_.list().empty()) {
      if (!options_.overwrite_output_dir)
        throw ConfigError(
            cat(run_.path().string(),
                " holds checkpoints of an earlier run: go on with "
                "--resume_from_checkpoint true, choose another --output_dir, or give --overwrite_output_dir "
                "to remove them"));
      run_.clear();
    }
    run_.prepare();
  });
  data_ =
      open_training_data(options_, config.vocab_size, resume_from_.has_value(), world_.rank(), agreement_);
  prepare_stages(config);
  engine_ = assemble(world_, options_.model_dir, options_.engine);
  time_left_.emplace(first_step_flops());
  if (resume_from_) resume();
  agreement_.all_or_none("writing the run's config.json and metrics.jsonl", [&] {
    if (!reports()) return;
    write_durable(run_.config(), to_json(options_).dump(2) + "\n");
    metrics_.emplace(run_.metrics(), resume_from_ ? steps_done_ : -1);
    if (!resume_from_) run_.remove_events();
    if (options_.tensorboard) events_.emplace(options_.logging_dir, steps_done_ + 1);
  });
  constexpr double kSecondsPerShape = 0.05;
  peak_ = options_.peak_tflops > 0
              ? PeakRate{options_.peak_tflops * 1e12, "given"}
              : peak_rate(options_.engine.device, options_.engine.precision, kSecondsPerShape);
  peak_flops_ = agreement_.sum(peak_.flops_per_second);
}

void Trainer::resume() {
  // Rank 0 verified the files when it chose them.
  Json state;
  agreement_.all_or_none(cat("reading ", resume_from_->path.string()),
                         [&] { state = read_checkpoint(resume_from_->path, *engine_, reports()); });
  const ResumedRun resumed = parse_trainer_state(state, resume_from_->path);
  steps_done_ = resumed.step;
  tokens_seen_ = resumed.tokens_seen;
  checkpoint_ = resume_from_->path;
  const int due = stage_of_step(stages_, steps_done_);
  if (steps_done_ < total_steps() && due == resumed.stage) {
    open_stage(due);
    loader_->restore(resumed.loader);
  } else if (steps_done_ < total_steps() && stages_[static_cast<size_t>(due)].first_step != steps_done_) {
    throw ConfigError(cat("step ", steps_done_, " of the checkpoint lies in stage ", resumed.stage + 1,
                          " of its run, but in the middle of stage ", due + 1,
                          " of these --context_stages: give the stages of that run (later ones may change)"));
  }
  note(cat("resumed at step ", steps_done_, " of ", total_steps(), " from ", checkpoint_.string()));
  for (const std::string& change : changed_options(resumed.options, to_json(options_)))
    note("changed option: " + change);
}

void Trainer::open_stage(int stage) {
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
  // The other data-parallel ranks' documents end elsewhere, but as often.
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

void Trainer::step() {
  const double begin = now_seconds();
  const StepBatches batches = loader_->next();
  StepRecord record;
  record.learning_rate = stage().schedule.learning_rate(steps_done_ - stage().first_step);
  StepResult result;
  try {
    result = engine_->train_step(batches, record.learning_rate);
  } catch (const DataError& error) {
    throw DataError(cat("training stopped at step ", steps_done_ + 1, ": ", error.what(),
                        ". The last good checkpoint is ",
                        checkpoint_.empty() ? std::string("none") : checkpoint_.string()));
  }
  ++steps_done_;
  loss_ = result.loss;
  const LoaderOptions loader = loader_options(stage().sequence_tokens);
  const int64_t tokens =
      stage().sequence_tokens * loader.batch_size * loader.accumulation_steps * loader.dp_size;
  tokens_seen_ += tokens;
  record.seconds = now_seconds() - begin;
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
  if (options_.engine.precision == Precision::fp16) record.loss_scale = result.loss_scale;
  record.tokens_per_second = static_cast<double>(tokens) / record.seconds;
  record.mfu = flops / (record.seconds * peak_flops_);
  record.memory_bytes = peak_memory_bytes(options_.engine.device);
  const MemoryState memory = engine_->memory_account()->state();
  record.peak_memory = memory.peak;
  record.host_peak_memory = memory.host.peak;
  record.tokens_seen = tokens_seen_;
  time_left_->add_step(stage_, flops, record.seconds);
  record.eta_seconds = time_left_->seconds(stages_, steps_done_);
  keep(record.to_json());
  if (progress_) progress_->show(record);
  if (hooks_.on_step) hooks_.on_step(record);
  if (std::exchange(report_due_, false)) report_memory();
}

void Trainer::report_memory() {
  const MemoryShape shape =
      engine_->memory_shape(options_.per_device_train_batch_size, stage().sequence_tokens);
  note(cat("memory of rank ", world_.rank(), " at length ", format_count(stage().sequence_tokens),
           ", recompute ", shape.recompute.description(), "\n",
           memory_report(engine_->memory_account()->state(), memory_forecast(shape))));
}

void Trainer::evaluate() {
  const int64_t tokens = stage().sequence_tokens;
  EvaluationWalk walk(data_.held_out->set, data_.held_out->range, [&] {
    LoaderOptions loader = loader_options(tokens);
    loader.batch_size = 1;
    if (loader.masked_tokens) loader.masked_tokens->seed = MaskedTokenOptions{}.seed;  // as `eval loss` masks
    return loader;
  }());
  if (options_.max_eval_samples > 0) walk.limit_rows(options_.max_eval_samples);
  const PositionLoss result = evaluate_loss_by_position(*engine_, walk, power_of_two_edges(tokens));
  Json record = result.to_json();
  record["eval_loss"] = result.loss();
  record["step"] = steps_done_;
  record["packing"] = name_of(options_.samples.packing);
  record.erase("loss");
  keep(record);
  char text[128];
  std::snprintf(text, sizeof(text), "step %lld  held-out loss %.4f at length %s (%lld samples)",
                static_cast<long long>(steps_done_), result.loss(), format_count(tokens).c_str(),
                static_cast<long long>(result.samples));
  note(text);
}

void Trainer::save() {
  const Json state = {{"step", steps_done_},
                      {"total_steps", total_steps()},
                      {"stage", stage_},
                      {"loader", loader_->state()},
                      {"tokens_seen", tokens_seen_},
                      {"rng", {{"seed", options_.seed}}},
                      {"ranks", world_.size()},
                      {"loss", loss_},
                      {"options", to_json(options_)}};
  try {
    checkpoint_ = save_checkpoint(run_, {steps_done_, state, options_.model_dir}, *engine_, agreement_,
                                  options_.save_total_limit);
  } catch (const DataError& error) {
    throw DataError(cat("could not save the checkpoint of step ", steps_done_, ": ", error.what(),
                        ". The last good checkpoint is ",
                        checkpoint_.empty() ? std::string("none") : checkpoint_.string()));
  }
  note(cat("saved ", checkpoint_.string()));
}

TrainOutcome Trainer::run() {
  prepare();
  const auto stages = static_cast<int>(stages_.size());
  if (reports() && hooks_.out != nullptr) {
    progress_.emplace(*hooks_.out, hooks_.terminal, options_.logging_steps, total_steps(), stages);
    note(cat("model ", options_.model_dir.string(), ", ", format_count(engine_->config().parameter_count()),
             " parameters, ", world_.size(), world_.size() == 1 ? " rank" : " ranks"));
    note(engine_->description());
    note(cat("MFU is a share of ", format_fixed(peak_.flops_per_second / 1e12, 2), " TFLOP/s a rank (",
             peak_.source, ")"));
    if (const auto choice = engine_->recompute_choice(); choice && !choice->fits()) {
      const PlannedBatch& batch = options_.engine.planned_batch;
      note(shortage_warning(*choice, engine_->memory_shape(batch.samples, batch.tokens)));
    }
  }
  TrainOutcome outcome;
  while (steps_done_ < total_steps() && !outcome.stopped) {
    const int due = stage_of_step(stages_, steps_done_);
    if (due != stage_) open_stage(due);
    step();
    const bool last = steps_done_ == total_steps();
    if (data_.held_out && (last || (options_.eval_steps > 0 && steps_done_ % options_.eval_steps == 0)))
      evaluate();
    outcome.stopped =
        agreement_.any(hooks_.stop_requested != nullptr && hooks_.stop_requested->load()) && !last;
    if (last || outcome.stopped || (options_.save_steps > 0 && steps_done_ % options_.save_steps == 0))
      save();
  }
  if (progress_) progress_->finish();
  outcome.steps = steps_done_;
  outcome.total_steps = total_steps();
  outcome.loss = loss_;
  outcome.checkpoint = checkpoint_;
  return outcome;
}

}  // namespace

TrainOutcome train(World& world, const TrainOptions& options, const TrainHooks& hooks) {
  return Trainer(world, options, hooks).run();
}

}  // namespace trireme
