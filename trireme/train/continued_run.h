// --continue_run: a new run that begins with the weights and optimizer states of a finished one.
#pragma once

#include <filesystem>

#include "trireme/train/train_options.h"

namespace trireme {

// The checkpoint that is meant by a run's folder (its newest) or by a checkpoint. Looks at names alone.
// Throws ConfigError: there is none.
std::filesystem::path continued_checkpoint(const std::filesystem::path& run);

// Throws ConfigError: the options name another model or adapter than that checkpoint.
void check_continued(const TrainOptions& options, const std::filesystem::path& checkpoint);

}  // namespace trireme
