#include "trireme/cli/train.h"

#include <functional>
#include <iostream>
#include <unistd.h>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/base/last_words.h"
#include "trireme/base/terminal.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/stop_signal.h"
#include "trireme/train/trainer.h"

namespace trireme {
namespace {

// In columns, before each line. A launcher on a terminal says how wide it is.
std::function<int()> columns_of_output() {
  if (terminal_columns(STDOUT_FILENO) > 0) return [] { return terminal_columns(STDOUT_FILENO); };
  return
      [columns = static_cast<int>(environment_integer("TRIREME_TERMINAL").value_or(0))] { return columns; };
}

}  // namespace

void TrainFlags::declare(OptionParser& parser) {
  TrainOptions& o = options;
  parser.text("model_name_or_path", model, "model folder, or org/name in the Hugging Face cache");
  parser.required("model_name_or_path");
  data.declare(parser, "train_file");
  parser.path("eval_file", o.eval_file, "held-out text or tokenized set");
  parser.real("validation_split_percentage", o.validation_split_percentage,
              "hold out this end of --train_file instead");
  parser.text(
      "context_stages", o.context_stages,
      "LENGTH:STEPS[:PEAK_LEARNING_RATE],...: each stage has its own warm-up and schedule, and half the peak "
      "of the one before");
  parser.integer("max_steps", o.max_steps, "optimizer steps; -1: --num_train_epochs decides");
  parser.real("num_train_epochs", o.num_train_epochs, "passes over the data");
  parser.count("per_device_train_batch_size", o.per_device_train_batch_size,
               "samples of one micro-batch of each group of ranks that share a sample");
  parser.count("gradient_accumulation_steps", o.gradient_accumulation_steps, "micro-batches of one step");
  parser.real("learning_rate", o.learning_rate, "peak");
  parser.choice("lr_scheduler_type", o.lr_scheduler_type, schedule_names(), "schedule of each stage");
  parser.text("lr_scheduler_kwargs", o.lr_scheduler_kwargs, R"(JSON, such as {"min_lr_rate": 0.1})");
  parser.real("warmup_ratio", o.warmup_ratio, "share of a stage's steps");
  parser.real("warmup_steps", o.warmup_steps, "steps; below 1: a share");
  OptimizerOptions& optimizer = o.engine.optimizer;
  parser.real("weight_decay", optimizer.weight_decay, "skips norms and biases");
  parser.real("adam_beta1", optimizer.beta1, "");
  parser.real("adam_beta2", optimizer.beta2, "");
  parser.real("adam_epsilon", optimizer.epsilon, "");
  parser.real(
      "dropout", dropout,
      "0, the only value that is built: train a model without the dropout that its config.json asks for");
  parser.real("max_grad_norm", optimizer.max_grad_norm, "gradients are clipped to this norm; 0: not");
  update.declare(parser);
  engine.declare(parser);
  parser.flag("gradient_checkpointing", gradient_checkpointing, "the same as --recompute full");
  parser.path("output_dir", o.output_dir, "the run's folder");
  parser.flag(
      "overwrite_output_dir", o.overwrite_output_dir,
      "when the first step is done, remove an earlier run's checkpoints, metrics and event files there");
  parser.text("resume_from_checkpoint", o.resume_from_checkpoint,
              "true: newest whole one; auto: that, or a fresh run; or a path");
  parser.flag("resume_with_new_data", o.resume_with_new_data,
              "go on where the data, or its order, is not the checkpoint's: it begins at its beginning");
  parser.flag("keep_global_batch", o.keep_global_batch,
              "where a run goes on with other ranks: as many samples a step as before, by "
              "--gradient_accumulation_steps");
  parser.count("save_steps", o.save_steps, "steps between checkpoints; 0: only at the end");
  parser.count("save_total_limit", o.save_total_limit, "checkpoints to keep; 0: all");
  parser.count("logging_steps", o.logging_steps,
               "steps between printed lines where the output is no terminal");
  parser.count("eval_steps", o.eval_steps, "steps between evaluations; 0: only at the end");
  parser.count("max_eval_samples", o.max_eval_samples, "samples of one evaluation; 0: all");
  parser.count("seed", o.seed, "of the order of samples, and of stochastic rounding");
  parser.choice("report_to", report_to, {"tensorboard", "all", "none"},
                "beside metrics.jsonl; all: what is built, which is TensorBoard's event files");
  parser.path("logging_dir", o.logging_dir, "folder of the event files; not given: runs in --output_dir");
  parser.flag("memory_report", o.memory_report,
              "after the first step of each stage, print what each part of memory took, beside its formula");
  parser.real("peak_tflops", o.peak_tflops,
              "of one rank's device, for MFU; 0: published for a known GPU, else measured");
}

TrainOptions TrainFlags::resolve(const OptionParser& parser, const RankPlace& place) const {
  TrainOptions resolved = options;
  update.check();
  resolved.model_dir = find_model_directory(model);
  resolved.train_file = data.file;
  resolved.text_field = data.text_field;
  resolved.append_eos = !data.no_append_eos;
  resolved.samples = data.samples(parser);
  resolved.max_seq_length = data.max_seq_length;
  resolved.tensorboard = report_to != "none";
  if (parser.given("dropout")) resolved.dropout = dropout;

  EngineFlags of_engine = engine;
  if (gradient_checkpointing) {
    if (parser.given("recompute") && engine.recompute != "full")
      throw ConfigError(cat("--gradient_checkpointing contradicts --recompute ", engine.recompute));
    of_engine.recompute = "full";
  }
  resolved.engine = of_engine.resolve(place);
  resolved.engine.optimizer = options.engine.optimizer;
  resolved.engine.optimizer.seed = static_cast<uint64_t>(resolved.seed);
  update.apply(resolved.engine);
  check_options(resolved);
  return resolved;
}

int run_train(const std::vector<std::string>& arguments) {
  TrainFlags flags;
  OptionParser parser("train", "Trains a model on long sequences, split over --ulysses x --ring ranks.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;
  end_on_stop_request();
  const RankPlace place = place_from_environment();
  TrainOptions options = flags.resolve(parser, place);

  TrainHooks hooks;
  hooks.out = &std::cout;
  hooks.terminal_columns = columns_of_output();
  hooks.stop_requested = &stop_requested();
  hooks.on_training_begins = save_on_stop_request;
  const c10::DeviceGuard guard(options.engine.device);
  const auto world = join_run(place, options.engine, flags.engine.timeout());
  const int machine_ranks = world->least_machine_ranks();
  set_degrees(options.engine, flags.engine.degrees(parser, machine_ranks, options.model_dir));
  const TrainOutcome outcome = train(*world, options, hooks);
  if (outcome.stopped) {
    if (place.rank == 0)
      std::cerr << kAskedToStop << ": finished step " << outcome.steps << " of " << outcome.total_steps
                << " and saved " << outcome.checkpoint.string()
                << "; go on with --resume_from_checkpoint true" << std::endl;
    return CommError("").exit_code();
  }
  return 0;
}

}  // namespace trireme
