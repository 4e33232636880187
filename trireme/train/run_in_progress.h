// A training run as one rank sees it: what these four files share.
//
//   prepare_run.cpp    options and data -> stages, engine
//   resumed_run.cpp    what a run takes over from a checkpoint
//   trainer.cpp        the loop: steps, guards, checkpoints
//   run_reports.cpp    what a run says and writes of itself: lines, metrics, evaluations
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/agreement.h"
#include "trireme/data/evaluation_loader.h"
#include "trireme/data/packed_loader.h"
#include "trireme/engine/engine.h"
#include "trireme/measure/peak_rate.h"
#include "trireme/train/background_save.h"
#include "trireme/train/chat_files.h"
#include "trireme/train/checkpoint_interval.h"
#include "trireme/train/length_change.h"
#include "trireme/train/memory_watch.h"
#include "trireme/train/metrics.h"
#include "trireme/train/progress_line.h"
#include "trireme/train/resume.h"
#include "trireme/train/run_lock.h"
#include "trireme/train/run_records.h"
#include "trireme/train/stage_plan.h"
#include "trireme/train/step_guards.h"
#include "trireme/train/time_left.h"
#include "trireme/train/trainer.h"
#include "trireme/train/training_data.h"

namespace trireme {

class RunInProgress {
 public:
  RunInProgress(World& world, const TrainOptions& options, const TrainHooks& hooks)
      : world_(world),
        options_(options),
        lora_asked_(options.engine.lora),
        hooks_(hooks),
        run_(options.output_dir),
        guards_(options.guards),
        interval_(options.save_steps, options.save_minutes, hooks.clock ? hooks.clock : now_seconds),
        rare_checkpoints_(options.save_steps, options.guards.on_spike != OnSpike::rollback),
        group_(world.make_group("train", {world.identity().all_ranks()})),
        agreement_(*group_, options.engine.device),
        background_save_(run_, agreement_, world.rank(), world.size()) {}

  TrainOutcome run();

 private:
  void prepare();
  void look_at_data(const ModelConfig& config);
  // To what a checkpoint stores of its stage's data (data_sources.h).
  void add_sources_of_stages(Json& data) const;
  void prepare_stages(const ModelConfig& config);
  EvaluationLoader held_out_samples(int stage, LoaderOptions settings) const;
  // Each rank reads some of the held-out samples of a stage to come, so that a set that cannot be evaluated costs
  // no steps.
  // Collective.
  void check_held_out(int stage);
  void report_samples(int stage);
  // Reads the checkpoint's small files and decides which options of this run may differ; changes no file.
  void compare_with_checkpoint(const ModelConfig& config);
  // From here on the run asks for these adapters by themselves: the folder of --adapter may go.
  void keep_lora(const LoraConfig& lora);
  // Sequence length of the stage that the checkpoint's run left unfinished; nullopt where a stage begins.
  std::optional<int64_t> length_to_go_on_with(const ResumedRun& resumed) const;
  void resume();
  // How the chats of all stages are written, also those of the checkpoint or adapter that the run begins with,
  // and what follows for its checkpoints. On rank 0.
  void find_chats();
  // --continue_run: of the finished run, which is checked before anything is changed, what this one begins
  // with.
  void find_continued();
  void begin_from_continued();
  void restore_length_change(const ResumedRun& resumed, const std::filesystem::path& checkpoint);
  // From now on the folder is this run's: removes or renames the files of an earlier run. Collective.
  void begin_records();
  // Renames the checkpoints of an earlier run that are later than the resumed step. On rank 0.
  void abandon_later_checkpoints();
  void open_stage(int stage);
  // Saves, if this step is not saved yet, and goes on from that checkpoint with the stage's engine.
  // Collective.
  void assemble_anew(int stage);
  bool step();  // false: the run went back to an earlier step instead
  // Completes and keeps the record of the step that is done: beside its rate, epoch and seconds.
  void report_step(StepRecord& record, const StepResult& result, const StepBatches& batches);
  bool follow(const GuardFinding& found);
  void roll_back(const std::filesystem::path& checkpoint);
  void report_start();
  void report_weights();  // collective
  // Of this rank. Collective.
  void report_resume(int64_t read_bytes, double seconds);
  void report_engine();
  void tell_epoch(double before, double after);
  void tell_rare_checkpoints(double step_seconds);
  void report_memory();
  // False: a request to stop came first, and the run evaluates when it goes on. Collective.
  bool evaluate();
  // The same; in a run of one rank an evaluation that fails costs no steps.
  bool evaluate_or_save();
  // Whether the run's folder has it. Collective.
  bool holds_checkpoint(int64_t step);
  // Keeps the checkpoint of this step as the best, where the evaluation after it says so.
  void note_best();
  // What the run before put off. Collective.
  void evaluate_first();
  // `in_background`: as far as training need not wait. The save before is finished first. Collective.
  void save(bool in_background);
  // Whether the run saves after this step, by rank 0's clock where it is one that decides. Collective.
  bool save_is_due();
  // The step after which the run saves whatever its interval is: its last, or this engine's.
  int64_t saved_anyway() const;
  // An error of `work` is told as one of saving this step.
  void name_if_not_saved(int64_t step, const std::function<void()>& work) const;
  // Goes on with a save that is under way, to its end if `to_end`. Collective.
  void look_after_save(bool to_end);
  // The best checkpoint of a run that goes on, if this run can still keep it. Collective.
  void restore_best(const ResumedRun& resumed, const Json& trainer_state);
  void report_saved();
  double step_flops(int stage, const StepBatches& batches) const;
  std::vector<double> first_step_flops() const;
  LoaderOptions loader_options(int stage) const;
  // Of the stage's engine, with what its training set says of the documents.
  EngineOptions engine_options(int stage) const;
  // Of a stage's training and held-out sets (data/packing.h).
  int64_t longest_context_tokens(int stage) const;
  const TrainOptions& options_of(int stage) const { return plan_.options[static_cast<size_t>(stage)]; }
  const DataSources& sources_of(int stage) const {
    return sources_[data_of_stage_[static_cast<size_t>(stage)]];
  }
  const TrainingData& data_of(int stage) const { return data_[data_of_stage_[static_cast<size_t>(stage)]]; }
  int sequence_ranks(int stage) const {
    return options_of(stage).engine.ulysses * options_of(stage).engine.ring;
  }
  std::string last_good() const {
    return checkpoint_.empty() ? ". There is no checkpoint yet"
                               : ". The last good checkpoint is " + checkpoint_.string();
  }
  const ContextStage& stage() const { return plan_.stages[static_cast<size_t>(stage_)]; }
  int64_t total_steps() const { return plan_.total_steps(); }
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
  TrainOptions options_;          // of the run; a stage's: options_of
  const LoraOptions lora_asked_;  // before keep_lora
  const TrainHooks& hooks_;
  RunDirectory run_;
  StepGuards guards_;
  CheckpointInterval interval_;
  RareCheckpoints rare_checkpoints_;
  std::unique_ptr<Group> group_;
  Agreement agreement_;
  std::optional<MemoryWatch> memory_watch_;
  std::optional<RunLock> lock_;  // rank 0
  std::optional<CheckpointEntry> resume_from_;
  std::filesystem::path continued_;  // the checkpoint of --continue_run, where nothing is resumed
  bool data_anew_ = false;           // resumed with other data
  bool records_begun_ = false;
  StagePlan plan_;
  std::vector<DataSources> sources_;   // of each --train_file
  std::vector<TrainingData> data_;     // the same
  std::vector<size_t> data_of_stage_;  // which of these
  ChatFormat chats_;                   // rank 0
  ChatFiles chat_files_;               // rank 0
  LoaderOptions samples_;              // for any length: from the options and the model
  LengthChange length_change_;
  std::unique_ptr<Engine> engine_;
  int engine_stage_ = 0;  // for which it was assembled
  std::unique_ptr<PackedLoader> loader_;
  BackgroundSave background_save_;
  Json base_weights_;                     // with LoRA: base_weights.h; else null
  Json before_step_ = Json::object();     // a resume, a save: told in the next step's record
  std::optional<RunRecords> records_;     // rank 0
  std::optional<ProgressLine> progress_;  // rank 0, where it reports
  int stage_ = -1;
  bool report_due_ = false;  // --memory_report: after the next step
  int64_t steps_done_ = 0;
  int64_t overflowed_steps_ = 0;  // of this stage, in fp16: they do not move its schedule, as in transformers
  int64_t tokens_seen_ = 0;
  PeakRate peak_;          // of this rank's device
  double peak_flops_ = 0;  // FLOP/s of all ranks
  std::optional<TimeLeft> time_left_;
  double loss_ = 0;
  std::filesystem::path checkpoint_;  // last good one
  std::optional<double> eval_loss_;   // of an evaluation after the last step
  bool evaluation_due_ = false;       // after the last step, put off by a request to stop
  std::optional<BestCheckpoint> best_;
  bool mfu_warned_ = false;
};

}  // namespace trireme
