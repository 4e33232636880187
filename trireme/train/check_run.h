// What is known of a run before its data: whether the ranks were told the same, and whether their options,
// the model and the number of ranks can stand together, in each stage. Nothing is written.
#pragma once

#include "trireme/comm/agreement.h"
#include "trireme/comm/world.h"
#include "trireme/model/model_config.h"
#include "trireme/train/stage_plan.h"
#include "trireme/train/train_options.h"

namespace trireme {

// Resolves options.samples by the model of options.model_dir, which it gives. Throws ConfigError, DataError.
// Collective; before anything that depends on options.
ModelConfig check_run(TrainOptions& options, const World& world, Agreement& agreement);

// The stages (make_stage_plan), each with the model as it is there, and with options that can stand together,
// else ConfigError. `config`: of the model folder. `steps`: of the one stage of a run without
// --context_stages; how many epochs are is known with the data.
StagePlan plan_run(const TrainOptions& options, const ModelConfig& config, const World& world,
                   int64_t steps = kMostSteps);

// Whether a stage's steps fit into a rank's host memory, within the model's positions and, with
// --strict_divisible, evenly on its ranks. Attention reaches over `longest_context_tokens` at most.
// ConfigError.
void check_stage(const StagePlan& plan, int stage, int64_t longest_context_tokens, const World& world);

}  // namespace trireme
