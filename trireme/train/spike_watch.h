// Looks for spikes of the loss: `spike_steps` steps in a row whose loss is above `spike_factor` times the
// median of the `spike_window` steps before them. Losses of a suspected spike do not enter the window; a loss
// that comes down again ends the suspicion. Deterministic: the same losses give the same spikes, wherever the
// run was stopped and resumed.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/train/guard_options.h"

namespace trireme {

struct Spike {
  int64_t first_step = 0;
  double median = 0;
  std::vector<double> losses;  // of first_step and those after it

  std::string description(double factor) const;
};

class SpikeWatch {
 public:
  explicit SpikeWatch(const GuardOptions& options) : options_(options) {}

  // A finished step of a finite loss. A spike once it is whole; the window then begins anew.
  std::optional<Spike> add(int64_t step, double loss);
  // No loss is suspected.
  bool calm() const { return suspected_.empty(); }
  // Another length of sequence has another loss.
  void begin_anew();

  Json state() const;
  // Throws DataError that names the field.
  void restore(const Json& state, const std::string& origin);

 private:
  const GuardOptions options_;
  std::deque<double> window_;
  std::vector<double> suspected_;
};

}  // namespace trireme
