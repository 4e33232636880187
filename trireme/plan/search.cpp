#include "trireme/plan/search.h"

#include <algorithm>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/plan/planned_inputs.h"

namespace trireme {
namespace {

// Of equally fast ones the plainest: less that is offloaded, sharded, shared and cut.
auto effort(const Configuration& c) {
  return std::tuple(c.offload_activations, c.offload_parameters, c.offload_optimizer, c.zero,
                    c.sequence_ranks(), c.ring, c.head_chunks, -c.tile_tokens, c.batch, c.recompute);
}

struct TimedCandidate {
  Candidate candidate;
  double least_seconds_per_token;
};

// Both are steps of one candidate, which keep least and most: each share of a step's time is least at one of
// them.
double least_seconds(const StepTime& a, const StepTime& b) {
  double seconds = std::min(a.compute_seconds, b.compute_seconds) + a.overhead_seconds +
                   std::min(a.host_optimizer_waited_seconds, b.host_optimizer_waited_seconds);
  for (size_t i = 0; i < std::min(a.traffic.size(), b.traffic.size()); ++i) {
    const auto of_b = std::ranges::find(b.traffic, a.traffic[i].kind, &TrafficSeconds::kind);
    if (of_b != b.traffic.end()) seconds += std::min(a.traffic[i].waited, of_b->waited);
  }
  return seconds;
}

// Where convex `f` is least in [least, most].
template <typename F>
int64_t least_of_convex(int64_t least, int64_t most, const F& f) {
  if (least == most || f(most) <= f(most - 1)) return most;
  int64_t low = least, high = most - 1;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (f(middle + 1) <= f(middle))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

}  // namespace

MemoryUse Search::memory_of(const Configuration& configuration, int64_t tokens) {
  ++counts_.forecasts;
  return memory_use(request_, planned_inputs(request_, configuration, tokens,
                                             fullest_sequence_rank(request_.model, configuration)));
}

double Search::seconds_of(const Configuration& configuration, int64_t tokens) {
  ++counts_.times;
  return step_time(planned_step(request_, configuration, tokens), request_.hardware).seconds;
}

Planned Search::planned(const Configuration& configuration, int64_t tokens) {
  ++counts_.times;
  ++counts_.forecasts;
  return make_planned(request_, configuration, tokens);
}

std::optional<Planned> Search::fit(const Candidate& candidate, int64_t tokens) {
  const auto fits = [&](int64_t keeping) { return memory_of(candidate.keeping(keeping), tokens).fits(); };
  int64_t most = candidate.most_keeping;
  if (!fits(most)) {
    if (candidate.least_keeping == most || !fits(candidate.least_keeping)) return std::nullopt;
    if (request_.settings.checkpoint_every > 1) {
      // More that is kept may need less then (forecast/choose_recompute.cpp).
      while (!fits(--most)) {
      }
    } else {
      int64_t low = candidate.least_keeping;
      while (low + 1 < most) {
        const int64_t middle = low + (most - low) / 2;
        (fits(middle) ? low : most) = middle;
      }
      most = low;
    }
  }
  const auto seconds = [&](int64_t keeping) { return seconds_of(candidate.keeping(keeping), tokens); };
  return planned(candidate.keeping(least_of_convex(candidate.least_keeping, most, seconds)), tokens);
}

std::optional<Planned> Search::fastest(int devices, int64_t tokens) {
  check_request(request_, devices, tokens);
  std::vector<TimedCandidate> timed;
  for (const Candidate& candidate : list_candidates(request_, devices, tokens)) {
    ++counts_.candidates;
    const auto time = [&](int64_t keeping) {
      ++counts_.times;
      return step_time(planned_step(request_, candidate.keeping(keeping), tokens), request_.hardware);
    };
    const StepTime most = time(candidate.most_keeping);
    const double seconds = candidate.least_keeping == candidate.most_keeping
                               ? most.seconds
                               : least_seconds(time(candidate.least_keeping), most);
    timed.push_back({candidate, seconds / static_cast<double>(candidate.configuration.samples() * tokens)});
  }
  std::ranges::sort(timed, [](const TimedCandidate& a, const TimedCandidate& b) {
    return std::tuple(a.least_seconds_per_token, effort(a.candidate.configuration)) <
           std::tuple(b.least_seconds_per_token, effort(b.candidate.configuration));
  });
  std::optional<Planned> best;
  for (const TimedCandidate& each : timed) {
    if (best && each.least_seconds_per_token >= best->seconds_per_token()) break;
    const auto fitted = fit(each.candidate, tokens);
    if (fitted && (!best || fitted->seconds_per_token() < best->seconds_per_token())) best = fitted;
  }
  return best;
}

Planned Search::nearest(int devices, int64_t tokens) {
  check_request(request_, devices, tokens);
  std::optional<std::pair<int64_t, Configuration>> least;
  for (const Candidate& candidate : list_candidates(request_, devices, tokens)) {
    const Configuration configuration = candidate.keeping(candidate.least_keeping);
    const MemoryUse memory = memory_of(configuration, tokens);
    const int64_t over = std::max<int64_t>(0, memory.device_over_bytes()) + std::max<int64_t>(0, memory.host_over_bytes());
    if (!least || over < least->first) least = {over, configuration};
  }
  return planned(least->second, tokens);
}

bool Search::holds(int devices, int64_t tokens) {
  const std::vector<Candidate> candidates = list_candidates(request_, devices, tokens);
  // The last ones shard and offload most.
  return std::any_of(candidates.rbegin(), candidates.rend(), [&](const Candidate& candidate) {
    return memory_of(candidate.keeping(candidate.least_keeping), tokens).fits();
  });
}

int64_t Search::longest(int devices, int64_t most_tokens) {
  // Lengths change which candidates there are (batches, tiles), and a tile's rows rise and fall with the
  // length: so every candidate of each length that is looked at is asked.
  int64_t fits = 0, over = most_tokens / kLengthQuantum + 1;
  for (int64_t step = 1; fits + step < over;) {
    if (holds(devices, (fits + step) * kLengthQuantum)) {
      fits += step;
      step *= 2;
    } else {
      over = fits + step;
    }
  }
  while (fits + 1 < over) {
    const int64_t middle = fits + (over - fits) / 2;
    (holds(devices, middle * kLengthQuantum) ? fits : over) = middle;
  }
  return fits * kLengthQuantum;
}

}  // namespace trireme
