// What each stage of a run does: its length, steps and schedule, and the options in force.
//
//   --context_stages 32k:400,128k:100:1e-5         lengths, steps and peaks alone (context_stages.h)
//   --context_stages '[{"max_seq_length": "32k", "steps": 400},
//                      {"max_seq_length": "128k", "tokens": "200m", "rope_scaling": "yarn:16", "zero": 3}]'
//
// A stage of the second form sets options of `train` under their names. What it leaves out is as in the stage
// before it, and in the first as the flags say; but the peak learning rate, which is half of the one before.
// Stages that follow each other with equal engine options share one engine, which is assembled for the
// longest of them. Arithmetic only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/train/context_stages.h"
#include "trireme/train/resume_rules.h"
#include "trireme/train/train_options.h"

namespace trireme {

// Whether --context_stages is of the second form.
inline bool is_stage_list(const std::string& context_stages) {
  return context_stages.starts_with('[');
}

// The list of the second form. Throws ConfigError: no JSON, or a name twice.
Json parse_stage_list(const std::string& context_stages);

// Whether a stage of the second form sets the kind of its schedule; of the first none does.
bool stages_set_schedule(const std::string& context_stages);

struct StagePlan {
  std::vector<ContextStage> stages;
  std::vector<TrainOptions> options;  // in force in each stage
  std::vector<ModelConfig> configs;   // the model in each stage (check_run.h)
  // From it on, epochs or tokens give the steps, which are others with another global batch; none: no stage.
  std::optional<int> counted_stage;

  int count() const { return static_cast<int>(stages.size()); }
  int longest_stage() const;  // of the most tokens a sample; the first of equals
  int fullest_stage() const;  // of the most tokens a micro-batch
  int64_t total_steps() const { return stages.back().end_step(); }
  // "ulysses 1 -> 2, zero 0 -> 3": what the engines of two stages differ in; empty: they share one.
  std::string engine_changes(int from, int to) const;
};

// The ranks and heads of a run, for what follows from them: --sp, tokens to steps.
struct RunTopology {
  int ranks = 1;
  int machine_ranks = 1;  // so many neighbours lie on one machine (World)
  int64_t query_heads = 1;
};

// `steps`: of the one stage of a run without --context_stages. With --keep_global_batch a stage takes as many
// samples a step as the one before, where it does not set its batch. Throws ConfigError that names the stage.
StagePlan make_stage_plan(const TrainOptions& run, const RunTopology& topology, int64_t steps);

// Makes a step of each stage `to` / `from` times as many micro-batches: --gradient_accumulation_steps, and the
// numbers that stages set for it. `done` stages before one that takes `from` take no more steps: if none of them
// counts tokens, they stay as they are. ConfigError where one of the numbers would not be whole.
void scale_accumulation(TrainOptions& options, int64_t to, int64_t from, int done = 0);

}  // namespace trireme
