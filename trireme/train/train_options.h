// Everything that a training run can be told. Names and defaults are those of Hugging Face's
// TrainingArguments where it has them. A new option is a field and its line in list_train_options, or in the
// list of its part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "trireme/base/json.h"
#include "trireme/engine/engine_options.h"
#include "trireme/train/best_checkpoint.h"
#include "trireme/train/context_stages.h"
#include "trireme/train/guard_options.h"
#include "trireme/train/sample_options.h"

namespace trireme {

// Samples of a micro-batch, micro-batches of a step, ranks that share a sample: of each at most.
inline constexpr int64_t kMostBatches = int64_t{1} << 20;

struct TrainOptions {
  // Model and data
  std::filesystem::path model_dir;         // holds config.json, weights and tokenizer.json
  std::filesystem::path train_file;        // text (file or folder), or the PREFIX of a tokenized set
  std::filesystem::path eval_file;         // the same kinds; empty: none
  double validation_split_percentage = 0;  // the end of train_file that is held out for evaluation
  SampleOptions samples;                   // packing, length, masked tokens

  // Schedule
  std::string context_stages;  // stage_plan.h; empty: one stage of samples.max_seq_length
  int64_t max_steps = -1;      // 0 or less: num_train_epochs decides
  double num_train_epochs = 3;
  int64_t per_device_train_batch_size = 8;  // samples of one micro-batch of each data-parallel group
  int64_t gradient_accumulation_steps = 1;
  double learning_rate = 5e-5;
  ScheduleKind lr_scheduler_type = ScheduleKind::linear;
  std::string lr_scheduler_kwargs;  // JSON
  double warmup_ratio = 0;
  double warmup_steps = 0;
  WarmupType warmup_type = WarmupType::linear;

  EngineOptions engine = {.optimizer = {.max_grad_norm = 1}};

  // In place of the dropout that the model's config.json asks for. 0 is the only value that is built.
  std::optional<double> dropout;

  // Run
  std::filesystem::path output_dir = "trainer_output";
  bool overwrite_output_dir = false;
  std::string resume_from_checkpoint;  // resume_kind tells its words
  std::filesystem::path continue_run;  // a finished run's folder or checkpoint, from which this one begins
  bool resume_with_new_data = false;   // other samples than the checkpoint's run: from their beginning
  bool keep_global_batch = false;  // resumed: accumulation_steps follow from the checkpoint's samples a step
  int64_t save_steps = 500;        // 0: only at the end
  double save_minutes = 0;         // 0: by steps alone
  int64_t save_total_limit = 0;    // 0: keep all
  BestMetric metric_for_best_model = BestMetric::none;
  int64_t logging_steps = 500;
  int64_t eval_steps = 0;        // 0: only at the end
  int64_t max_eval_samples = 0;  // of one evaluation; 0: all
  int64_t seed = 42;
  bool tensorboard = true;            // event files, of what metrics.jsonl holds
  std::filesystem::path logging_dir;  // for them; empty: OUTPUT_DIR/runs
  bool memory_report = false;         // after the first step of each stage: where memory went
  GuardOptions guards;
  double peak_tflops = 0;  // of one rank's device, for MFU; 0: by measure/peak_rate.h
};

void list_train_options(OptionList& list, TrainOptions& options);
// What --resume_from_checkpoint asks for, by its words.
enum class ResumeKind {
  none,
  newest,         // there must be one
  newest_if_any,  // else the run begins
  path
};
ResumeKind resume_kind(const TrainOptions& options);
// As written to the run's config.json: every option resolved.
Json to_json(const TrainOptions& options);
StageDefaults stage_defaults(const TrainOptions& options);
// The micro-batch of a rank, with samples of so many tokens.
PlannedBatch planned_batch(const TrainOptions& options, int64_t sequence_tokens);

}  // namespace trireme
