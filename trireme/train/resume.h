// Finds checkpoints, the one that a run resumes from and the one that a path means, and reads their
// trainer_state.json.
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

// The checkpoint that a run resumes from; nullopt for a fresh run. Rank 0 finds it, and all ranks verify it,
// each a share of the bytes. --resume_from_checkpoint decides. "true" and "latest" mean the newest whole
// checkpoint in the output folder, whoever wrote it; broken ones are passed over with a note. ConfigError if
// there is none. "auto" means the same, or a fresh run. Any other value is the path of a checkpoint or of a
// run's folder. A restart (RankIdentity::attempt) whose flags ask for a fresh run or name a path resumes from
// the newest checkpoint of its launch, if there is one. ConfigError for a path into another run if the output
// folder holds checkpoints. DataError, in the same words on every rank, if there are checkpoints (of a
// restart: of its launch) but none is whole, or if they cannot be read. Collective.
std::optional<CheckpointEntry> choose_checkpoint(const TrainOptions& options, const RunDirectory& run,
                                                 const RankIdentity& identity, Agreement& agreement,
                                                 const std::function<void(const std::string&)>& note);

// A checkpoint's folder means that checkpoint; a run's folder means its newest whole one, and `note` is told
// which newer ones are broken. Rank 0 finds it, and all ranks verify it, each a share of the bytes: the run
// may save meanwhile, and ranks that looked alone would find different ones. Throws ConfigError for any other
// path; DataError when the checkpoint is damaged, or when a newer one may not be read: it may well be whole.
// Collective.
CheckpointEntry find_checkpoint(const std::filesystem::path& path, const RankIdentity& identity,
                                Agreement& agreement, const std::function<void(const std::string&)>& note);
// The same of a process alone.
CheckpointEntry find_checkpoint(const std::filesystem::path& path,
                                const std::function<void(const std::string&)>& note);

// Every rank reads its share of the bytes. Throws DataError, in the same words on every rank, if the
// checkpoint is not whole. Collective.
void check_whole(CheckpointEntry& entry, const RankIdentity& identity, Agreement& agreement);

// The facts of the run that saved a checkpoint, to compare with this run's. Throws DataError.
RunFacts checkpoint_facts(const Json& state, const std::filesystem::path& checkpoint);

}  // namespace trireme
