// What is known of a run before its data: whether the ranks were told the same, and whether their options,
// the model and the number of ranks can stand together. Nothing is written.
#pragma once

#include "trireme/comm/agreement.h"
#include "trireme/comm/world.h"
#include "trireme/model/model_config.h"
#include "trireme/train/train_options.h"

namespace trireme {

// Resolves options.samples by the model, which it gives. Throws ConfigError, DataError. Collective; before
// anything that depends on options.
ModelConfig check_run(TrainOptions& options, const World& world, Agreement& agreement);

// The stages that the options name; without --context_stages the one, of at most kMostSteps: how many steps
// epochs are is known with the data.
std::vector<ContextStage> stages_before_data(const TrainOptions& options);
int64_t longest_stage_tokens(const std::vector<ContextStage>& stages);

}  // namespace trireme
