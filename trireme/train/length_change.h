// What a change of the sequence length does to the loss: its mean over the last 20 steps before, and over the
// first 5 after, said in one line. State lies in trainer_state.json, so that a run that goes on says the
// same.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "trireme/base/json.h"

namespace trireme {

class LengthChange {
 public:
  // From now on, for `steps` steps, samples have `tokens`.
  void stage_begins(int64_t tokens, int64_t steps);
  // A finished step of a finite loss. A line for a person once the first steps after a change are done.
  std::optional<std::string> add(double loss);

  Json state() const;
  // Throws DataError that names the field.
  void restore(const Json& state, const std::string& origin);

  static constexpr size_t kBefore = 20;
  static constexpr size_t kAfter = 5;
  // A loss that grows by more is a warning.
  static constexpr double kJump = 1.2;

 private:
  struct Baseline {
    int64_t tokens = 0;
    int64_t steps = 0;
    double loss = 0;
  };

  int64_t tokens_ = 0;                // 0: no step yet
  std::deque<double> recent_;         // of this length, the last kBefore
  std::optional<Baseline> baseline_;  // until the first steps after the change are done
  int64_t wanted_ = 0;                // of these
};

}  // namespace trireme
