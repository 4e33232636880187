#include "trireme/plan/search.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/plan/planned_inputs.h"

namespace trireme {
namespace {

// In which of equally fast ones is preferred.
auto effort(const Planned& planned, int64_t tile_tokens) {
  const Configuration& c = planned.configuration;
  return std::tuple(c.offload_activations, c.offload_parameters, c.offload_optimizer,
                    c.tile_tokens < tile_tokens, c.head_chunks, planned.memory.device_bytes, c.zero,
                    planned.seconds_per_token());
}

// Candidates [begin, end) of the list, and the least time that each of them takes.
struct Bounded {
  double seconds_per_token;
  size_t begin, end;

  bool is_group() const { return end - begin > 1; }
};

// They differ in what is sharded, offloaded and kept alone, so that a group's products and exchanges are one.
bool same_group(const Configuration& a, const Configuration& b) {
  return a.ulysses == b.ulysses && a.ring == b.ring && a.batch == b.batch && a.head_chunks == b.head_chunks &&
         a.tile_tokens == b.tile_tokens && a.logits_tile_tokens == b.logits_tile_tokens;
}

// Of a step of any member of the policy, from one that keeps as much as any: without what sharding and
// offload change, and without exchanges that attention may hide.
double least_seconds_of_group(const StepTime& time, int head_chunks) {
  double seconds = time.overhead_seconds + time.compute_seconds;
  for (const KindSeconds& kind : time.compute)
    if (kind.kind == WorkKind::optimizer) seconds -= kind.seconds;
  for (const TrafficSeconds& traffic : time.traffic)
    if (traffic.kind == TrafficKind::ulysses) seconds += traffic.seconds / head_chunks;
  return seconds;
}

// Both are steps of one candidate, which keep least and most: each share of a step's time is least at one of
// them.
double least_seconds(const StepTime& a, const StepTime& b) {
  double seconds = std::min(a.compute_seconds, b.compute_seconds) + a.overhead_seconds +
                   std::min(a.host_optimizer_waited_seconds, b.host_optimizer_waited_seconds);
  for (size_t i = 0; i < std::min(a.traffic.size(), b.traffic.size()); ++i) {
    const auto of_b = std::ranges::find(b.traffic, a.traffic[i].kind, &TrafficSeconds::kind);
    if (of_b != b.traffic.end()) seconds += std::min(a.traffic[i].waited_seconds, of_b->waited_seconds);
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

PlannedMemory Search::memory_of(const Configuration& configuration, int64_t tokens) {
  ++counts_.forecasts;
  ForecastInputs inputs =
      planned_inputs(request_, configuration, tokens, fullest_sequence_rank(request_.model, configuration));
  return planned_memory(request_, inputs);
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
  const std::vector<Candidate> all = list_candidates(request_, devices, tokens);
  counts_.candidates += static_cast<int64_t>(all.size());
  const auto plainest_first = [&](const Bounded& a, const Bounded& b) {
    const auto key = [&](const Bounded& each) {
      return std::tuple(each.seconds_per_token, !each.is_group(), each.begin);
    };
    return key(b) < key(a);
  };
  std::priority_queue<Bounded, std::vector<Bounded>, decltype(plainest_first)> open(plainest_first);
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && same_group(all[begin].configuration, all[end].configuration)) ++end;
    open.push({least_seconds_a_token(all, begin, end, tokens), begin, end});
  }
  std::vector<Planned> fitting;
  double least = std::numeric_limits<double>::infinity();
  while (!open.empty() && open.top().seconds_per_token < least * (1 + kAsFast)) {
    const Bounded next = open.top();
    open.pop();
    if (next.is_group()) {
      for (size_t i = next.begin; i < next.end; ++i)
        open.push({least_seconds_a_token(all, i, i + 1, tokens), i, i + 1});
    } else if (auto fitted = fit(all[next.begin], tokens)) {
      least = std::min(least, fitted->seconds_per_token());
      fitting.push_back(std::move(*fitted));
    }
  }
  std::erase_if(fitting,
                [&](const Planned& each) { return each.seconds_per_token() > least * (1 + kAsFast); });
  if (fitting.empty()) return std::nullopt;
  int64_t tile_tokens = 0;
  for (const Planned& each : fitting) tile_tokens = std::max(tile_tokens, each.configuration.tile_tokens);
  return *std::ranges::min_element(fitting, {},
                                   [&](const Planned& each) { return effort(each, tile_tokens); });
}

double Search::least_seconds_a_token(const std::vector<Candidate>& all, size_t begin, size_t end,
                                     int64_t tokens) {
  const auto time = [&](const Configuration& configuration) {
    ++counts_.times;
    return step_time(planned_step(request_, configuration, tokens), request_.hardware);
  };
  const Candidate& first = all[begin];
  double seconds = 0;
  if (end - begin > 1) {
    const auto most = std::max_element(
        all.begin() + static_cast<int64_t>(begin), all.begin() + static_cast<int64_t>(end),
        [](const Candidate& a, const Candidate& b) { return a.most_keeping < b.most_keeping; });
    seconds = least_seconds_of_group(time(most->configuration), first.configuration.head_chunks);
  } else if (first.least_keeping == first.most_keeping) {
    seconds = time(first.keeping(first.most_keeping)).seconds;
  } else {
    seconds =
        least_seconds(time(first.keeping(first.least_keeping)), time(first.keeping(first.most_keeping)));
  }
  return seconds / static_cast<double>(first.configuration.samples() * tokens);
}

Planned Search::nearest(int devices, int64_t tokens) {
  check_request(request_, devices, tokens);
  std::optional<std::pair<int64_t, Configuration>> least;
  for (const Candidate& candidate : list_candidates(request_, devices, tokens)) {
    const Configuration configuration = candidate.keeping(candidate.least_keeping);
    const PlannedMemory memory = memory_of(configuration, tokens);
    const int64_t over =
        std::max<int64_t>(0, memory.device_over_bytes()) + std::max<int64_t>(0, memory.host_over_bytes());
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
