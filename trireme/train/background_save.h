// Saves a checkpoint while training goes on.
//
//   pass's thread   begin: units put together -> snapshot on the host   step   look   step   look ... look
//   worker                                                  [ writes and syncs this rank's file ]
//   worker, rank 0                                                         all did: [ manifest, name ]
//
// Collectives run on the pass's thread alone, in begin, look and finish. The name step-N appears when all
// ranks have written and synced their files: the result is, byte for byte, what save_checkpoint would have
// written in begin. The snapshot takes 4 bytes of host memory for each value of each state of the units that
// this rank writes (forecast/store_bytes.h), until they are written.
#pragma once

#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/agreement.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/publish_checkpoint.h"
#include "trireme/train/run_directory.h"

namespace trireme {

struct SavedInBackground {
  std::filesystem::path checkpoint;
  double seconds = 0;  // from the snapshot's end until the checkpoint had its name and was seen
};

class BackgroundSave {
 public:
  // One at a time. All three live longer.
  BackgroundSave(const RunDirectory& run, Agreement& agreement, int rank, int ranks)
      : run_(run), agreement_(agreement), rank_(rank), ranks_(ranks) {}
  // Ends the worker soon. What it is not publishing yet stays without a name.
  ~BackgroundSave() = default;
  BackgroundSave& operator=(BackgroundSave&&) = delete;

  // None may be pending. Collective; DataError and out of memory, on all ranks, as of save_checkpoint.
  void begin(const CheckpointContents& contents, Engine& engine, int64_t save_total_limit);
  // The same on all ranks.
  bool pending() const { return phase_ != Phase::none; }
  int64_t step() const { return texts_.step; }  // of the save that is or was pending
  // Goes on with a pending save as far as it can without waiting; what it returns is saved. Collective.
  // DataError, on all ranks, where a rank could not write.
  std::optional<SavedInBackground> look();
  // The same to its end.
  std::optional<SavedInBackground> finish();

 private:
  enum class Phase { none, writing, publishing };
  struct UnitState {
    const UnitSpec* unit;
    std::string state;
    at::Tensor values;
  };
  void start(std::function<void(const std::stop_token&)> work);
  void write(const std::stop_token& stop);
  std::optional<SavedInBackground> go_on();

  const RunDirectory& run_;
  Agreement& agreement_;
  const int rank_, ranks_;
  Phase phase_ = Phase::none;
  double began_seconds_ = 0;
  CheckpointTexts texts_;
  std::vector<UnitSpec> units_;
  std::vector<std::string> states_;
  std::vector<UnitState> snapshot_;
  ManifestFile shard_;
  std::exception_ptr failure_;
  std::atomic<bool> at_work_ = false;  // while it is true, what is above up to texts_ is the worker's
  std::jthread worker_;
};

}  // namespace trireme
