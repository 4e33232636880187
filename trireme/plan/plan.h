// A plan: the recommended configuration, why others lose, lengths against speed, and advice.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/plan/runners_up.h"
#include "trireme/plan/search.h"

namespace trireme {

struct Plan {
  Planned best;                // where nothing fits, what is the least over
  int devices = 1;             // with Objective::fewest_gpus at most those of the request
  int64_t longest_tokens = 0;  // that these devices hold
  std::vector<RunnerUp> runners_up;
  std::vector<Planned> frontier;  // the fastest at possible lengths that double, up to the longest
  // Where the length does not fit on `devices`, or too slowly: the fewest above them that hold it fast
  // enough, by bisection.
  std::optional<int> devices_needed;
  std::vector<std::string> advice;
  SearchCounts counts;

  bool fits() const { return best.memory.fits(); }
  // There is no target, or it is reached.
  bool reaches(double target_tokens_per_second) const {
    return best.time.tokens_per_second >= target_tokens_per_second;
  }
  // For a token budget.
  double seconds_for(int64_t tokens) const {
    return static_cast<double>(tokens) / best.time.tokens_per_second;
  }
  double device_hours_for(int64_t tokens) const {
    return seconds_for(tokens) / 3600 * best.configuration.ranks();
  }
};

// Throws ConfigError as check_request does, and with Objective::length where not even Search::shortest
// fits.
Plan make_plan(const PlanRequest& request);

// One for each length, each by itself.
std::vector<Plan> plan_stages(const PlanRequest& request, const std::vector<int64_t>& lengths);

// "128k,256k", or "128k,...,1m", which doubles. Throws ConfigError that quotes the text.
std::vector<int64_t> parse_stage_lengths(const std::string& text);

}  // namespace trireme
