#include "trireme/train/context_stages.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/sample_layout.h"
#include "trireme/base/sizes.h"
#include "trireme/model/embedding.h"

namespace trireme {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  if (!text.empty() && text.back() == separator) parts.emplace_back();
  return parts;
}

double parse_peak(const std::string& text, const std::string& stage) {
  char* end = nullptr;
  const double peak = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(peak) || !(peak > 0))
    throw ConfigError(cat("--context_stages: the peak learning rate of '", quotation(stage), "' is '",
                          quotation(text), "'; expected a number above 0 such as 2e-5"));
  return peak;
}

ContextStage make_stage(int64_t sequence_tokens, int64_t first_step, int64_t steps, double peak,
                        const StageDefaults& defaults) {
  const int64_t warmup = resolve_warmup_steps(defaults.warmup_steps, defaults.warmup_ratio, steps);
  const Schedule schedule{defaults.kind, defaults.kwargs, peak, warmup, steps, defaults.warmup_type};
  schedule.check();
  return {sequence_tokens, first_step, steps, schedule};
}

}  // namespace

std::vector<ContextStage> parse_context_stages(const std::string& text, const StageDefaults& defaults) {
  std::vector<ContextStage> stages;
  for (const std::string& part : split(text, ',')) {
    const std::vector<std::string> fields = split(part, ':');
    if (fields.size() < 2 || fields.size() > 3)
      throw ConfigError(cat("--context_stages: '", quotation(part),
                            "' is not LENGTH:STEPS[:PEAK_LEARNING_RATE], such as 4k:20"));
    const int64_t tokens =
        parse_count(fields[0], cat("--context_stages: the length of '", quotation(part), "'"));
    const int64_t steps =
        parse_count(fields[1], cat("--context_stages: the steps of '", quotation(part), "'"));
    if (tokens < 1 || steps < 1)
      throw ConfigError(cat("--context_stages: '", quotation(part), "' has ", tokens, " tokens and ", steps,
                            " steps; expected 1 or more of each"));
    double peak = stages.empty() ? defaults.learning_rate : stages.back().schedule.peak_learning_rate / 2;
    if (fields.size() == 3) peak = parse_peak(fields[2], part);
    const int64_t first = stages.empty() ? 0 : stages.back().end_step();
    if (steps > kMostSteps - first)
      throw ConfigError(cat("--context_stages: the steps up to and with '", quotation(part),
                            "' are more than ", format_count(kMostSteps), ", the most that a run can have"));
    ContextStage stage = make_stage(tokens, first, steps, peak, defaults);
    if (stage.schedule.warmup_steps >= steps && stage.schedule.warmup_steps > 0)
      throw ConfigError(cat("--context_stages: the warm-up of ", stage.schedule.warmup_steps,
                            " steps does not end within '", quotation(part),
                            "'; give fewer --warmup_steps, or a --warmup_ratio"));
    stages.push_back(stage);
  }
  if (stages.empty())
    throw ConfigError("--context_stages is empty; expected LENGTH:STEPS such as 1k:60,4k:20");
  return stages;
}

std::vector<ContextStage> single_stage(int64_t sequence_tokens, int64_t steps,
                                       const StageDefaults& defaults) {
  return {make_stage(sequence_tokens, 0, steps, defaults.learning_rate, defaults)};
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

int64_t position_reach(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  if (rope.kind == RopeKind::standard) return config.max_position_embeddings;
  const int64_t original = rope.original_max_position_embeddings > 0 ? rope.original_max_position_embeddings
                                                                     : config.max_position_embeddings;
  constexpr double kMost = 9e15;  // a whole number that a double holds, for any factor
  const double stretched = std::min(kMost, rope.factor * static_cast<double>(original));
  return std::max(config.max_position_embeddings, static_cast<int64_t>(std::llround(stretched)));
}

void check_positions(const std::vector<ContextStage>& stages, const ModelConfig& config,
                     int64_t longest_document_tokens) {
  const int64_t reach = position_reach(config);
  for (const ContextStage& stage : stages) {
    const int64_t tokens = std::min(stage.sequence_tokens, longest_document_tokens);
    check_positions(config, tokens);
    if (tokens > reach)
      throw ConfigError(
          cat("a sequence of ", format_count(tokens), " tokens is longer than the ", format_count(reach),
              " positions of the model: raise max_position_embeddings (now ", config.max_position_embeddings,
              ") in its config.json, with a larger rope_theta or a rope scaling such as yarn, or train on "
              "shorter sequences"));
  }
}

void check_divisible(const std::vector<ContextStage>& stages, int ulysses, int ring) {
  for (const ContextStage& stage : stages)
    check_divisible(SampleLayout{stage.sequence_tokens, ulysses, ring});
}

}  // namespace trireme
