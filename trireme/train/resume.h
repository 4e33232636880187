// Where a run goes on from: which checkpoint, and what its trainer_state.json says.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "trireme/base/json.h"
#include "trireme/comm/agreement.h"
#include "trireme/comm/world.h"
#include "trireme/train/resume_rules.h"
#include "trireme/train/run_directory.h"
#include "trireme/train/train_options.h"
#include "trireme/train/trainer_state.h"

namespace trireme {

// The checkpoint that a run goes on from, found by rank 0 and verified by all, each a share of the files; none for a fresh run.
// As --resume_from_checkpoint says: "true" and "latest" mean the newest whole one in the output folder (broken ones are passed
// over, with a note), whoever wrote it, ConfigError when there is none; "auto" means that, or a fresh run; else a path to a
// checkpoint or a run's folder. A restart (RankPlace::attempt) whose flags ask for a fresh run, or name a path, goes on from
// the newest that its launch wrote, where there is one. A path into another run is a ConfigError where the output folder holds
// checkpoints. DataError, in the same words on every rank, where checkpoints are there and none is whole; also where they cannot
// be read. Collective.
std::optional<CheckpointEntry> choose_checkpoint(const TrainOptions& options, const RunDirectory& run,
                                                 const RankPlace& place, Agreement& agreement,
                                                 const std::function<void(const std::string&)>& note);

// What the run that saved a checkpoint was, to be compared with this one. Throws DataError.
RunFacts checkpoint_facts(const Json& state, const std::filesystem::path& checkpoint);

}  // namespace trireme
