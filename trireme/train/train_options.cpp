#include "trireme/train/train_options.h"

namespace trireme {
namespace {

using enum ResumeRule;
constexpr auto kSteps = static_cast<double>(kMostSteps);
constexpr auto kBatches = static_cast<double>(kMostBatches);
constexpr double kMostSeed = kLargestExactWhole - 1;  // where doubles also tell a number from the next one
constexpr auto kReports =
    std::to_array<EnumName<bool>>({{true, "tensorboard"}, {true, "all"}, {false, "none"}});

void list_model_and_data(OptionList& list, TrainOptions& o) {
  list.group(OptionGroup::model);
  list.path("model_name_or_path", o.model_dir, "model folder, or org/name in the Hugging Face cache")
      .required()
      .on_resume(by_content);
  list.real("dropout", o.dropout, from_to(0, 0),
            "0 trains a model without the dropout that its config.json asks for; dropout is not built");

  list.group(OptionGroup::data);
  list.path("train_file", o.train_file, "text (.txt, .jsonl or a folder), or the PREFIX of a tokenized set")
      .required()
      .on_resume(by_content)
      .in_stages();
  list.path("eval_file", o.eval_file, "held-out text or tokenized set").on_resume(ResumeRule::free);
  list.real("validation_split_percentage", o.validation_split_percentage, from_to_below(0, 100),
            "hold out this end of --train_file instead")
      .on_resume(same_order);
  list_sample_options(list, o.samples);
  list.count("seed", o.seed, from_to(0, kMostSeed),
             "of the order of samples, of stochastic rounding, and of fresh LoRA matrices")
      .on_resume(same_order);
}

void list_schedule(OptionList& list, TrainOptions& o) {
  list.group(OptionGroup::schedule);
  // Of stages and --max_seq_length, the length of the stage that the run is in is compared.
  list.text(
          "context_stages", o.context_stages,
          "LENGTH:STEPS[:PEAK_LEARNING_RATE],...: each stage has its own warm-up and schedule, and half "
          "the peak of the one before; or a JSON list, or a file with one, of stages that set other options")
      .with_commas();
  list.count("max_steps", o.max_steps, from_to(-1, kSteps),
             "optimizer steps; 0 or -1: --num_train_epochs decides");
  list.real("num_train_epochs", o.num_train_epochs, from_to(0, kSteps), "passes over the data");
  list.count("per_device_train_batch_size", o.per_device_train_batch_size, from_to(1, kBatches),
             "samples of one micro-batch of each group of ranks that share a sample")
      .in_stages();
  list.count("gradient_accumulation_steps", o.gradient_accumulation_steps, from_to(1, kBatches),
             "micro-batches of one step")
      .in_stages();
  list.real("learning_rate", o.learning_rate, above(0, 1e38), "peak of the first stage").in_stages();
  list.choice("lr_scheduler_type", o.lr_scheduler_type, "schedule of each stage").in_stages();
  list.text("lr_scheduler_kwargs", o.lr_scheduler_kwargs,
            R"(JSON, such as {"min_lr_rate": 0.1}; warmup_stable_decay needs {"num_decay_steps": 100})")
      .in_stages();
  list.real("warmup_ratio", o.warmup_ratio, from_to(0, 1), "share of a stage's steps").in_stages();
  list.real("warmup_steps", o.warmup_steps, from_to(0, kSteps), "steps; below 1: a share").in_stages();
  list.choice("warmup_type", o.warmup_type,
              "how the learning rate grows meanwhile; log: as in DeepSpeed's WarmupLR")
      .in_stages();
}

void list_checkpoints(OptionList& list, TrainOptions& o) {
  list.group(OptionGroup::checkpoints, ResumeRule::free);
  list.path("output_dir", o.output_dir, "the run's folder");
  list.flag(
      "overwrite_output_dir", o.overwrite_output_dir,
      "when the first step is done, remove an earlier run's checkpoints, metrics and event files there");
  list.text("resume_from_checkpoint", o.resume_from_checkpoint,
            "true: newest whole one; auto: that, or a fresh run; or a path");
  list.path(
      "continue_run", o.continue_run,
      "begin a new run with the weights, optimizer states and options of a finished one: its folder, or "
      "a checkpoint");
  list.flag("resume_with_new_data", o.resume_with_new_data,
            "go on where the data, or its order, is not the checkpoint's: it begins at its beginning");
  list.flag("keep_global_batch", o.keep_global_batch,
            "where a run goes on with other ranks, or a stage shares samples among others: as many samples a "
            "step as before, by --gradient_accumulation_steps");
  list.count("save_steps", o.save_steps, from_to(0, kSteps), "steps between checkpoints; 0: only at the end");
  list.real("save_minutes", o.save_minutes, from_to(0, 1e6),
            "a checkpoint also when so many minutes have passed since the last one; 0: by steps alone");
  list.flag(
      "save_in_background", o.engine.save_in_background,
      "training goes on while a checkpoint is written, from a copy in host memory (12 bytes a parameter "
      "over all ranks, with AdamW)");
  list.count("save_total_limit", o.save_total_limit, from_to(0, kSteps), "checkpoints to keep; 0: all");
  list.choice("metric_for_best_model", o.metric_for_best_model,
              "keep the checkpoint with the smallest held-out loss or perplexity, beside the newest");
}

void list_watching(OptionList& list, TrainOptions& o) {
  list.group(OptionGroup::watching, ResumeRule::free);
  list.count("logging_steps", o.logging_steps, from_to(1, kSteps),
             "steps between printed lines where the output is no terminal");
  list.count("eval_steps", o.eval_steps, from_to(0, kSteps), "steps between evaluations; 0: only at the end");
  list.count("max_eval_samples", o.max_eval_samples, from_to(0, kMostTokens),
             "samples of one evaluation; 0: all");
  list.choice("report_to", o.tensorboard, kReports,
              "beside metrics.jsonl; all: what is built, which is TensorBoard's event files");
  list.path("logging_dir", o.logging_dir, "folder of the event files; not given: runs in --output_dir");
  list.flag("memory_report", o.memory_report,
            "after the first step of each stage, print what each part of memory took, beside its formula");
  list.real("peak_tflops", o.peak_tflops, from_to(0, 1e9),
            "of one rank's device, for MFU; 0: published for a known GPU, else measured")
      .of_machine();
  list_guard_options(list, o.guards);
}

}  // namespace

void list_train_options(OptionList& list, TrainOptions& o) {
  list_model_and_data(list, o);
  list_schedule(list, o);
  list_training_options(list, o.engine);
  list.group(OptionGroup::memory);
  list.flag("gradient_checkpointing", o.engine.recompute.policy, Recompute::full,
            "the same as --recompute full")
      .not_in_config();
  list_checkpoints(list, o);
  list_watching(list, o);
}

Json to_json(const TrainOptions& options) {
  return list_of_copy(options, list_train_options).config();
}

ResumeKind resume_kind(const TrainOptions& o) {
  const std::string& asked = o.resume_from_checkpoint;
  if (asked.empty() || asked == "false" || asked == "False") return ResumeKind::none;
  if (asked == "true" || asked == "True" || asked == "latest") return ResumeKind::newest;
  return asked == "auto" ? ResumeKind::newest_if_any : ResumeKind::path;
}

StageDefaults stage_defaults(const TrainOptions& o) {
  return {o.lr_scheduler_type, parse_schedule_kwargs(o.lr_scheduler_kwargs),
          o.learning_rate,     o.warmup_steps,
          o.warmup_ratio,      o.warmup_type};
}

PlannedBatch planned_batch(const TrainOptions& o, int64_t sequence_tokens) {
  return {.samples = o.per_device_train_batch_size,
          .tokens = sequence_tokens,
          .packed = o.samples.packing.kind != Packing::concat,
          .micro_batches = o.gradient_accumulation_steps};
}

}  // namespace trireme
