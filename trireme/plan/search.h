// The fastest configuration that fits, the longest sequence, and lengths against speed.
//
//   candidates -> groups of one mesh, batch, chunks and tiles, with the least time that one of each may take
//     -> in that order: its members, with the least time of each
//     -> what fits, until none that is left can be faster than the best
//
// Memory is asked of few: only of those that could still be the best. What a candidate's layers keep is,
// for each size of groups, the most that fits, by bisection; of offloaded activations what makes the step
// shortest.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "trireme/plan/candidates.h"
#include "trireme/plan/planned.h"

namespace trireme {

struct SearchCounts {
  int64_t candidates = 0;
  int64_t times = 0;      // steps whose time was computed
  int64_t forecasts = 0;  // whose memory was
};

// Every search counts what it does. The request outlives it.
class Search {
 public:
  explicit Search(const PlanRequest& request) : request_(request) {}

  // The most tokens a second on `devices`; nullopt: nothing fits. Throws ConfigError as check_request does.
  std::optional<Planned> fastest(int devices, int64_t tokens);
  // That which is the least over, where nothing fits.
  Planned nearest(int devices, int64_t tokens);
  // The longest sample that a configuration holds, at most `most_tokens`; 0: none. Lengths that are looked at
  // are multiples of kLengthQuantum; with --strict_divisible of the next number that all meshes divide.
  int64_t longest(int devices, int64_t most_tokens);
  // The first of these lengths with a token for each rank that has to share a sample.
  int64_t shortest(int devices) const;
  // Some configuration holds it.
  bool holds(int devices, int64_t tokens);

  const SearchCounts& counts() const { return counts_; }

 private:
  PlannedMemory memory_of(const Configuration& configuration, int64_t tokens);
  Planned planned(const Configuration& configuration, int64_t tokens);
  StepTime time_of(const Configuration& configuration, int64_t tokens);
  // What a candidate's layers keep, in the smallest of its groups.
  struct Position {
    int64_t keeping;
    PlannedMemory memory;
  };
  // The first that fits; where none does, that which exceeds the limits by least.
  Position least_position(const Candidate& candidate, int64_t tokens);
  // Of the positions from `least` on that fit, in the smallest groups.
  Planned fastest_from(int64_t least, const Candidate& candidate, int64_t tokens);
  // The fastest of each size of groups that fits, but those that cannot be as fast as is asked.
  std::vector<Planned> fit(const Candidate& candidate, int64_t tokens, double at_most_seconds_a_token);
  bool holds(const Candidate& candidate, int64_t tokens);
  // Of one candidate, or of those of one group.
  double least_seconds_a_token(std::span<const Candidate> candidates, int64_t tokens);

  const PlanRequest& request_;
  SearchCounts counts_;
};

// Of steps that differ by less, the one that offloads and cuts least is taken, then the one that holds least.
inline constexpr double kAsFast = 0.005;
inline constexpr int64_t kLengthQuantum = 1024;
inline constexpr int64_t kMostLength = int64_t{1} << 30;

}  // namespace trireme
