#include "trireme/train/context_stages.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/option_value.h"
#include "trireme/base/sizes.h"
#include "trireme/base/split.h"
#include "trireme/model/embedding.h"
#include "trireme/model/rope_override.h"

namespace trireme {
namespace {

// "give --rope_scaling yarn:4, or a larger --rope_theta (now 10000)"
std::string advice_to_reach(const ModelConfig& config, int64_t tokens) {
  if (std::string lacking = lacking_original_positions(config); !lacking.empty()) return lacking;
  return cat("give --rope_scaling ", rope_scaling_to_reach(config, tokens),
             config.rope.kind == RopeKind::standard
                 ? cat(", or a larger --rope_theta (now ", number_text(config.rope.theta), ")")
                 : std::string());
}

ContextStage make_stage(int64_t sequence_tokens, int64_t first_step, int64_t steps,
                        const StageDefaults& defaults) {
  const int64_t warmup = resolve_warmup_steps(defaults.warmup_steps, defaults.warmup_ratio, steps);
  const Schedule schedule{defaults.kind, defaults.kwargs, defaults.learning_rate,
                          warmup,        steps,           defaults.warmup_type};
  schedule.check();
  return {sequence_tokens, first_step, steps, schedule};
}

}  // namespace

ContextStage next_stage(const std::vector<ContextStage>& before, int64_t sequence_tokens, int64_t steps,
                        const StageDefaults& defaults) {
  if (sequence_tokens < 1 || steps < 1)
    throw ConfigError(
        cat("it has ", sequence_tokens, " tokens and ", steps, " steps; expected 1 or more of each"));
  const int64_t first = before.empty() ? 0 : before.back().end_step();
  if (steps > kMostSteps - first)
    throw ConfigError(cat("the steps up to its end are more than ", format_count(kMostSteps),
                          ", the most that a run can have"));
  const ContextStage stage = make_stage(sequence_tokens, first, steps, defaults);
  if (stage.schedule.warmup_steps >= steps && stage.schedule.warmup_steps > 0)
    throw ConfigError(cat("the warm-up of ", stage.schedule.warmup_steps,
                          " steps does not end within it; give fewer --warmup_steps, or a --warmup_ratio"));
  return stage;
}

std::vector<ContextStage> parse_context_stages(const std::string& text, const StageDefaults& defaults) {
  if (text.empty()) throw ConfigError("--context_stages is empty; expected LENGTH:STEPS such as 1k:60,4k:20");
  std::vector<ContextStage> stages;
  for (const std::string& part : split_at_commas(text, "--context_stages")) {
    try {
      const std::vector<std::string> fields = split(part, ':');
      if (fields.size() < 2 || fields.size() > 3)
        throw ConfigError("expected LENGTH:STEPS[:PEAK_LEARNING_RATE], such as 4k:20");
      StageDefaults of_stage = defaults;
      if (!stages.empty()) of_stage.learning_rate = stages.back().schedule.peak_learning_rate / 2;
      if (fields.size() == 3) of_stage.learning_rate = parse_real(fields[2], "the peak learning rate");
      stages.push_back(next_stage(stages, parse_count(fields[0], "the length"),
                                  parse_count(fields[1], "the number of steps"), of_stage));
    } catch (const ConfigError& error) {
      throw ConfigError(cat("--context_stages, '", quotation(part), "': ", error.what()));
    }
  }
  return stages;
}

bool first_stage_has_peak(const std::string& text) {
  return split(split(text, ',').front(), ':').size() == 3;
}

std::vector<ContextStage> single_stage(int64_t sequence_tokens, int64_t steps,
                                       const StageDefaults& defaults) {
  return {make_stage(sequence_tokens, 0, steps, defaults)};
}

std::string warmup_warning(const std::vector<ContextStage>& stages) {
  for (const ContextStage& stage : stages)
    if (stage.schedule.warmup_steps > stage.steps)
      return cat("warning: the warm-up of ", stage.schedule.warmup_steps,
                 " steps does not end within the run's ", stage.steps,
                 ": the peak learning rate is not reached");
  return "";
}

int stage_of_step(const std::vector<ContextStage>& stages, int64_t step) {
  int index = 0;
  while (index + 1 < static_cast<int>(stages.size()) && step >= stages[static_cast<size_t>(index)].end_step())
    ++index;
  return index;
}

void check_positions_reach(int64_t tokens, const ModelConfig& config, int64_t longest_context_tokens) {
  const int64_t reach = position_reach(config), longest = std::min(tokens, longest_context_tokens);
  check_positions(config, longest);
  if (longest > reach)
    throw ConfigError(cat("a sequence of ", format_count(longest), " tokens is longer than the ",
                          format_count(reach), " positions of the model (max_position_embeddings ",
                          config.max_position_embeddings, "): ", advice_to_reach(config, longest),
                          ", or train on shorter sequences"));
}

}  // namespace trireme
