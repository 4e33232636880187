// What a run makes of each finished step: a step that was not finite and skipped, a spike of the loss. One
// object a rank, the same on all of them. Its state lies in trainer_state.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "trireme/base/json.h"
#include "trireme/engine/engine.h"
#include "trireme/train/guard_options.h"
#include "trireme/train/spike_watch.h"
#include "trireme/train/trainer_state.h"

namespace trireme {

enum class GuardVerdict { go_on, stop, roll_back };

struct GuardFinding {
  GuardVerdict verdict = GuardVerdict::go_on;
  std::string text;  // for a person; empty: nothing was found
};

class StepGuards {
 public:
  explicit StepGuards(const GuardOptions& options) : options_(options), spikes_(options) {}

  // Of the step to come: no more than kMostSkipped in a row are skipped.
  OnNonfinite on_nonfinite() const;
  // By which the schedule's learning rate is multiplied: below 1 after a rollback.
  double rate_factor() const { return rate_factor_; }
  // Steps skipped so far; none where --on_nonfinite skip is not asked for.
  std::optional<int64_t> nonfinite_steps() const;

  // ". The 10 steps before were skipped" or nothing, to follow an error of a step.
  std::string skipped_before() const;
  GuardFinding look(int64_t step, const StepResult& result);
  void stage_begins() { spikes_.begin_anew(); }
  // No spike is suspected: what is saved now is good, and older checkpoints are not needed.
  bool calm() const { return spikes_.calm(); }
  void saving(int64_t step);
  // The step of the last checkpoint that was saved while no spike was suspected.
  std::optional<int64_t> good_step() const { return good_step_; }
  // After the run went back, in `stage`, to that checkpoint.
  void rolled_back(const ResumedRun& run, const std::filesystem::path& checkpoint, int stage);

  Json state() const;  // null: nothing happened yet that a resumed run must know
  // Of that checkpoint, whose run may have had no guards. Throws DataError that names the field.
  void restore(const ResumedRun& run, const std::filesystem::path& checkpoint);

  static constexpr int64_t kMostSkipped = 10;  // in a row
  static constexpr double kRollbackRate = 0.5;

 private:
  const GuardOptions options_;
  SpikeWatch spikes_;
  int64_t nonfinite_steps_ = 0;
  int64_t nonfinite_in_a_row_ = 0;
  std::optional<int64_t> good_step_;
  bool rolled_back_ = false;
  double rate_factor_ = 1;
};

// What to do after a spike that stopped the run; `checkpoint`: from before it, empty: there is none.
std::string after_a_spike(const std::string& checkpoint);

}  // namespace trireme
