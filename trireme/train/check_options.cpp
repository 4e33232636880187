#include "trireme/train/check_options.h"

#include <cmath>
#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/model/lora_files.h"
#include "trireme/tokenizer/utf8.h"
#include "trireme/train/stage_plan.h"

namespace trireme {
namespace {

// Paths of a system may be of any bytes, and the run's JSON files are of UTF-8.
void check_that_each_is_utf8(const OptionList& list) {
  for (const Option& option : list.options()) {
    const Json value = option.read();
    if (!value.is_string()) continue;
    const std::string& text = value.get_ref<const std::string&>();
    if (is_valid_utf8(text)) continue;
    size_t wrong = 0;
    for (Utf8Character next = read_character(text, 0); next.valid; next = read_character(text, wrong))
      wrong += static_cast<size_t>(next.bytes);
    char byte[16];
    std::snprintf(byte, sizeof(byte), "\\x%02x", static_cast<unsigned char>(text[wrong]));
    throw ConfigError(cat("--", option.name, " has the byte ", byte, " behind '",
                          quotation(text.substr(0, wrong)),
                          "'; expected UTF-8, which alone the run's config.json can hold: rename the file or "
                          "folder, or give a link to it"));
  }
}

constexpr const char* kGiveHeldOut = "give --eval_file or --validation_split_percentage";
bool has_held_out(const TrainOptions& o) {
  return !o.eval_file.empty() || o.validation_split_percentage > 0;
}

// ConfigError for an option with another value than its default where nothing reads it.
void check_that_each_counts(const TrainOptions& o) {
  const TrainOptions unless_given;
  const auto refuse = [](bool given, const char* name, const std::string& why) {
    if (given) throw ConfigError(cat("--", name, " means nothing with ", why, ", or leave it out"));
  };
  if (o.lr_scheduler_type == ScheduleKind::constant && !stages_set_schedule(o.context_stages)) {
    const std::string why = "--lr_scheduler_type constant; give constant_with_warmup";
    refuse(o.warmup_steps > 0, "warmup_steps", why);
    refuse(o.warmup_ratio > 0, "warmup_ratio", why);
  }
  if (!has_held_out(o)) {
    const std::string why = cat("no held-out data; ", kGiveHeldOut);
    refuse(o.eval_steps > 0, "eval_steps", why);
    refuse(o.max_eval_samples > 0, "max_eval_samples", why);
  }
  if (o.guards.on_spike == OnSpike::off) {
    const std::string why = "--on_spike off; give --on_spike warn, stop or rollback";
    refuse(o.guards.spike_factor != unless_given.guards.spike_factor, "spike_factor", why);
    refuse(o.guards.spike_window != unless_given.guards.spike_window, "spike_window", why);
    refuse(o.guards.spike_steps != unless_given.guards.spike_steps, "spike_steps", why);
  }
}

}  // namespace

void check_options(const TrainOptions& o) {
  const OptionList list = list_of_copy(o, list_train_options);
  list.check();
  check_that_each_is_utf8(list);
  if (o.max_steps <= 0 && !(o.num_train_epochs > 0))
    throw ConfigError(
        cat("--num_train_epochs is ", o.num_train_epochs, "; expected a number above 0, or a --max_steps"));
  if (o.warmup_steps > 1 && o.warmup_steps != std::floor(o.warmup_steps))
    throw ConfigError(
        cat("--warmup_steps is ", o.warmup_steps, "; expected whole steps, or a share of them below 1"));
  if (o.engine.update_in_backward && o.gradient_accumulation_steps > 1)
    throw ConfigError(
        cat("--update_in_backward steps a layer as soon as its gradient is whole, which "
            "--gradient_accumulation_steps ",
            o.gradient_accumulation_steps, " does not allow; use 1"));
  if (o.engine.update_in_backward && o.guards.on_nonfinite == OnNonfinite::skip)
    throw ConfigError(
        "--on_nonfinite skip leaves weights as they were, and --update_in_backward steps layers before the "
        "whole gradient is known; leave one of them out");
  if (o.guards.on_spike == OnSpike::rollback && o.save_steps <= 0)
    throw ConfigError(
        "--on_spike rollback goes back to a checkpoint, and --save_steps 0 saves one at the end alone; give "
        "--save_steps N, or --on_spike stop");
  if (o.guards.on_spike == OnSpike::rollback && o.save_minutes > 0)
    throw ConfigError(
        cat("--on_spike rollback goes back to the last checkpoint, and with --save_minutes ", o.save_minutes,
            " a clock would decide which one that is, so that no run could be repeated; give a smaller "
            "--save_steps alone, or --on_spike stop"));
  if (o.metric_for_best_model != BestMetric::none) {
    const std::string asked = cat("--metric_for_best_model ", name_of(o.metric_for_best_model));
    if (!has_held_out(o)) throw ConfigError(cat(asked, " compares held-out losses; ", kGiveHeldOut));
    if (o.save_steps <= 0 && o.save_minutes > 0)
      throw ConfigError(
          cat(asked,
              " compares checkpoints by the evaluation of their step, and a clock alone "
              "(--save_minutes with --save_steps 0) saves at steps without one; give --save_steps, "
              "a multiple of --eval_steps"));
    if (o.save_steps > 0 && (o.eval_steps == 0 || o.save_steps % o.eval_steps != 0))
      throw ConfigError(cat(asked, " compares checkpoints by the evaluation of their step, and --save_steps ",
                            o.save_steps, " is not a multiple of --eval_steps ", o.eval_steps,
                            o.eval_steps == 0 ? " (only at the end)" : "", "; give --eval_steps ",
                            o.save_steps));
  }
  if (o.overwrite_output_dir && resume_kind(o) != ResumeKind::none)
    throw ConfigError(cat("--overwrite_output_dir removes an earlier run, and --resume_from_checkpoint ",
                          o.resume_from_checkpoint,
                          " goes on with one: give one of them (a restart by the launcher goes on with what "
                          "it wrote in either case)"));
  if (!o.tensorboard && !o.logging_dir.empty())
    throw ConfigError(
        "--logging_dir is for TensorBoard's event files, which --report_to none does not write; leave one of "
        "them out");
  if (!o.eval_file.empty() && o.validation_split_percentage > 0)
    throw ConfigError("give either --eval_file or --validation_split_percentage, not both");
  check_that_each_counts(o);
}

void check_dropout(const TrainOptions& options, const ModelConfig& config) {
  if (options.dropout || config.dropout.empty()) return;
  std::string fields;
  for (const auto& [field, rate] : config.dropout)
    fields += cat(fields.empty() ? "" : " and ", field, " ", rate);
  throw ConfigError(cat((options.model_dir / "config.json").string(), " asks training to drop activations (",
                        fields, "), and dropout is not built; give --dropout 0 to train without it"));
}

void check_dropout_of_adapter(const LoraOptions& lora) {
  if (lora.adapter.empty() || !is_adapter_folder(lora.adapter)) return;
  const double dropout = read_adapter_config(lora.adapter).dropout;
  if (dropout > 0)
    throw ConfigError(cat((lora.adapter / kAdapterConfigFile).string(), ": lora_dropout is ", dropout,
                          ", and dropout is not built; set it to 0 there to train on without it"));
}

void check_packing(Packing packing, const EngineOptions& engine) {
  if (packing == Packing::concat || engine.device.is_cpu() || !takes_whole_samples_alone(engine.attention))
    return;
  throw ConfigError(cat("--attention ", name_of(engine.attention),
                        " does not know documents that share a sample, which --packing ", name_of(packing),
                        " makes; use --attention auto or flash, or --packing concat"));
}

}  // namespace trireme
