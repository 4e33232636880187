// Where a run goes on from: which checkpoint, and what its trainer_state.json says.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/train/agreement.h"
#include "trireme/train/run_directory.h"
#include "trireme/train/train_options.h"

namespace trireme {

// The checkpoint that --resume_from_checkpoint means, verified by rank 0; none for a fresh run. "true" and
// "latest": the newest whole one in the output folder (broken ones are passed over, with a note), ConfigError
// when there is none; "auto": that, or a fresh run; else a path to a checkpoint or a run's folder.
// Collective.
std::optional<CheckpointEntry> choose_checkpoint(const TrainOptions& options, const RunDirectory& run,
                                                 bool is_rank_0, Agreement& agreement,
                                                 const std::function<void(const std::string&)>& note);

struct ResumedRun {
  int64_t step = 0;
  int stage = 0;
  int64_t tokens_seen = 0;
  Json loader;
  Json options;
};
// Throws DataError that names what is missing.
ResumedRun parse_trainer_state(const Json& state, const std::filesystem::path& checkpoint);

// "learning_rate 0.0001 -> 5e-05" for each option that differs and can change a result.
std::vector<std::string> changed_options(const Json& before, const Json& now);

}  // namespace trireme
