// trainer_state.json of a checkpoint: the progress of its run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "trireme/base/json.h"
#include "trireme/engine/training_progress.h"
#include "trireme/train/best_checkpoint.h"

namespace trireme {

struct ResumedRun {
  int64_t step = 0;
  int stage = 0;
  int64_t tokens_seen = 0;
  int64_t overflowed_steps = 0;  // of its stage
  bool evaluation_due = false;   // after this step, put off by a request to stop
  Json loader;  // an object, for PackedLoader::restore; null: another program's run, whose place is not known
  Json length_change;  // an object, for LengthChange::restore; null: another program's run
  Json guards;         // an object, for StepGuards::restore; null: none was at work
  std::optional<BestCheckpoint> best;
};
// Throws DataError that names the file and the field that is missing or out of range.
ResumedRun parse_trainer_state(const Json& state, const std::filesystem::path& checkpoint);

// From which the engine goes on. Throws DataError as above; `origin` is the file.
TrainingProgress parse_saved_progress(const Json& state, const std::string& origin);

}  // namespace trireme
