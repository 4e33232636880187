#include "trireme/cli/unread_flags.h"

#include "trireme/base/error.h"

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
  refuse(stages, "num_train_epochs", "with --context_stages; give the stages steps");
}

}  // namespace trireme
