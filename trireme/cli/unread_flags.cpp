#include "trireme/cli/unread_flags.h"

#include "trireme/base/error.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/train/stage_plan.h"

namespace trireme {

void refuse_unread_flags(const OptionParser& parser, const TrainOptions& o) {
  const auto refuse = [&](bool unread, const char* flag, const char* reader) {
    if (unread && parser.source_of(flag) == cat("--", flag))
      throw ConfigError(cat("--", flag, " means nothing ", reader, ", or leave it out"));
  };
  const bool stages = !o.context_stages.empty();
  const bool has_loss_scale = o.engine.precision == Precision::fp16;
  refuse(!has_loss_scale, "initial_loss_scale", "without a loss scale; give --fp16");
  refuse(!has_loss_scale, "loss_scale_window", "without a loss scale; give --fp16");
  refuse(!stages && o.warmup_steps == 0 && o.warmup_ratio == 0, "warmup_type",
         "without a warm-up; give --warmup_steps or --warmup_ratio");
  refuse(stages && !is_stage_list(o.context_stages), "max_seq_length",
         "with --context_stages LENGTH:STEPS; give the stages lengths");
  refuse(stages, "num_train_epochs", "with --context_stages; give the stages steps");
  const bool has_text =
      !is_indexed_dataset(o.train_file) || !(o.eval_file.empty() || is_indexed_dataset(o.eval_file));
  refuse(!has_text, "text_field", "for tokenized data; give trireme tokenize --field");
  refuse(!has_text, "on_bad_record", "for tokenized data; give it to trireme tokenize");
  for (const char* flag : {"append_eos", "no_append_eos"})
    refuse(!has_text, flag, "for tokenized data; decide it in trireme tokenize (--no_append_eos)");
}

}  // namespace trireme
