// A run's numbers as TensorBoard reads them, beside metrics.jsonl.
//
//   record of metrics.jsonl -> event_scalars -> event -> FOLDER/events.out.tfevents.SECONDS.HOST.PROCESS.0
//
// Readers take a folder's files in the order of their names. A process that resumes a run begins a file that
// sorts after the earlier ones. The file first tells readers to drop the earlier points of the steps that the
// process takes again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/train/appended_file.h"
#include "trireme/train/tensorboard_record.h"

namespace trireme {

// The beginning of event files' names.
inline constexpr const char* kEventFilePrefix = "events.out.tfevents.";

// Every number of a record except its step: train/NAME and memory/CATEGORY of a training step; eval/NAME and
// eval_loss_by_position/FIRST-LAST of an evaluation, without buckets in which nothing was scored.
std::vector<EventScalar> event_scalars(const Json& record);

class TensorBoardEvents {
 public:
  // For records of steps from `first_step` on. The first record makes the folder and the file. A removed file
  // is made again; a check for that runs every `look_seconds`.
  TensorBoardEvents(const std::filesystem::path& folder, int64_t first_step, double look_seconds = 10);

  // Hands the record's event to the system at once. Returns an empty text; or why it could not (the record is
  // left out, the file still holds whole records, and the next call tries again); or that the file was
  // removed and is begun anew with this record.
  std::string write(const Json& record);

 private:
  AppendedFile events_;
};

}  // namespace trireme
