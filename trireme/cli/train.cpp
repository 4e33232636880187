#include "trireme/cli/train.h"

#include <iostream>
#include <unistd.h>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/cli/data_flags.h"
#include "trireme/cli/engine_flags.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/stop_signal.h"
#include "trireme/cli/update_flags.h"
#include "trireme/train/trainer.h"

namespace trireme {
namespace {

// Flags that are not options by themselves.
struct TrainFlags {
  std::string model;
  EngineFlags engine;
  UpdateFlags update;
  DataFlags data;
  bool gradient_checkpointing = false;
  std::string report_to = "tensorboard";
};

void declare(OptionParser& parser, TrainFlags& flags, TrainOptions& o) {
  parser.text("model_name_or_path", flags.model, "model folder, or org/name in the Hugging Face cache");
  parser.required("model_name_or_path");
  flags.data.declare(parser, "train_file");
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
  parser.real("max_grad_norm", optimizer.max_grad_norm, "gradients are clipped to this norm; 0: not");
  flags.update.declare(parser);
  flags.engine.declare(parser);
  parser.flag("gradient_checkpointing", flags.gradient_checkpointing, "the same as --recompute full");
  parser.path("output_dir", o.output_dir, "the run's folder");
  parser.flag("overwrite_output_dir", o.overwrite_output_dir,
              "remove an earlier run's checkpoints, metrics and event files there");
  parser.text("resume_from_checkpoint", o.resume_from_checkpoint,
              "true: newest whole one; auto: that, or a fresh run; or a path");
  parser.count("save_steps", o.save_steps, "steps between checkpoints; 0: only at the end");
  parser.count("save_total_limit", o.save_total_limit, "checkpoints to keep; 0: all");
  parser.count("logging_steps", o.logging_steps,
               "steps between printed lines where the output is no terminal");
  parser.count("eval_steps", o.eval_steps, "steps between evaluations; 0: only at the end");
  parser.count("max_eval_samples", o.max_eval_samples, "samples of one evaluation; 0: all");
  parser.count("seed", o.seed, "of the order of samples, and of stochastic rounding");
  parser.choice("report_to", flags.report_to, {"tensorboard", "all", "none"},
                "beside metrics.jsonl; all: what is built, which is TensorBoard's event files");
  parser.path("logging_dir", o.logging_dir, "folder of the event files; not given: runs in --output_dir");
  parser.flag("memory_report", o.memory_report,
              "after the first step of each stage, print what each part of memory took, beside its formula");
  parser.real("peak_tflops", o.peak_tflops,
              "of one rank's device, for MFU; 0: published for a known GPU, else measured");
}

}  // namespace

int run_train(const std::vector<std::string>& arguments) {
  TrainOptions options;
  TrainFlags flags;
  OptionParser parser("train", "Trains a model on long sequences, split over --ulysses x --ring ranks.");
  declare(parser, flags, options);
  if (!parser.parse(arguments)) return 0;
  flags.update.check();
  options.model_dir = find_model_directory(flags.model);
  options.train_file = flags.data.file;
  options.text_field = flags.data.text_field;
  options.append_eos = !flags.data.no_append_eos;
  options.samples = flags.data.samples(parser);
  options.max_seq_length = flags.data.max_seq_length;
  options.tensorboard = flags.report_to != "none";

  const RankPlace place = place_from_environment();
  const OptimizerOptions optimizer = options.engine.optimizer;
  if (flags.gradient_checkpointing) {
    if (parser.given("recompute") && flags.engine.recompute != "full")
      throw ConfigError(cat("--gradient_checkpointing contradicts --recompute ", flags.engine.recompute));
    flags.engine.recompute = "full";
  }
  options.engine = flags.engine.resolve(place);
  options.engine.optimizer = optimizer;
  options.engine.optimizer.seed = static_cast<uint64_t>(options.seed);
  flags.update.apply(options.engine);
  check_options(options);

  TrainHooks hooks;
  hooks.out = &std::cout;
  // A launcher on a terminal tells its ranks so.
  hooks.terminal = ::isatty(STDOUT_FILENO) == 1 || environment("TRIREME_TERMINAL") == "1";
  hooks.stop_requested = &watch_stop_signals();
  const c10::DeviceGuard guard(options.engine.device);
  const auto world = join_run(place, options.engine, flags.engine.ddp_timeout);
  const int machine_ranks = world->least_machine_ranks();
  set_degrees(options.engine, flags.engine.degrees(parser, machine_ranks, options.model_dir));
  const TrainOutcome outcome = train(*world, options, hooks);
  if (outcome.stopped) {
    if (place.rank == 0)
      std::cerr << "trireme: asked to stop: finished step " << outcome.steps << " of " << outcome.total_steps
                << " and saved " << outcome.checkpoint.string()
                << "; go on with --resume_from_checkpoint true" << std::endl;
    return CommError("").exit_code();
  }
  return 0;
}

}  // namespace trireme
