// Context extension: a run is a sequence of stages of growing sequence length, each with its own warm-up and
// schedule.
//
//   --context_stages 1k:60,4k:20,16k:8          LENGTH:STEPS[:PEAK_LEARNING_RATE], comma separated
//
// A stage without its own peak takes half of the peak before. The learning rate falls with each stage,
// because a model that learned the short context needs small, well-warmed steps to learn the long one.
// Without the flag a run is one stage. Arithmetic only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/model/model_config.h"
#include "trireme/train/schedule.h"

namespace trireme {

// Steps of a run at most: of all stages together.
inline constexpr int64_t kMostSteps = 1'000'000'000'000;

struct ContextStage {
  int64_t sequence_tokens = 0;  // S
  int64_t first_step = 0;       // of the whole run
  int64_t steps = 0;
  Schedule schedule;  // over this stage's steps

  int64_t end_step() const { return first_step + steps; }
};

// Settings that all stages share. `learning_rate` is the peak of the first stage.
struct StageDefaults {
  ScheduleKind kind = ScheduleKind::linear;
  ScheduleKwargs kwargs;
  double learning_rate = 5e-5;
  double warmup_steps = 0;  // of each stage, as in resolve_warmup_steps
  double warmup_ratio = 0;
  WarmupType warmup_type = WarmupType::linear;
};

// The stage after those before it. Throws ConfigError: no token or step, too many steps, a warm-up that does
// not end within the stage.
ContextStage next_stage(const std::vector<ContextStage>& before, int64_t sequence_tokens, int64_t steps,
                        const StageDefaults& defaults);
// The short form. Throws ConfigError that quotes the wrong stage.
std::vector<ContextStage> parse_context_stages(const std::string& text, const StageDefaults& defaults);
// Whether the first stage of the short form has its own peak.
bool first_stage_has_peak(const std::string& text);
// The one stage of a run without --context_stages.
std::vector<ContextStage> single_stage(int64_t sequence_tokens, int64_t steps, const StageDefaults& defaults);
// A warning if a stage ends before its warm-up, as in a trial of a few steps; else empty.
std::string warmup_warning(const std::vector<ContextStage>& stages);

// Index of the stage of step `step` (from 0); the last stage for later steps.
int stage_of_step(const std::vector<ContextStage>& stages, int64_t step);

// ConfigError that names the config key when samples of `tokens`, whose longest context has
// `longest_context_tokens`, go past the positions of the model.
void check_positions_reach(int64_t tokens, const ModelConfig& config, int64_t longest_context_tokens);

}  // namespace trireme
