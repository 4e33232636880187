#include "trireme/plan/search.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

#include "trireme/base/round_up.h"
#include "trireme/base/sample_layout.h"
#include "trireme/plan/check_request.h"
#include "trireme/plan/planned_inputs.h"

namespace trireme {
namespace {

// In which of equally fast ones is preferred.
auto effort(const Planned& planned, int64_t tile_tokens) {
  const Configuration& c = planned.configuration;
  return std::tuple(c.offload.activations, c.offload.parameters, c.offload.optimizer,
                    c.tile_tokens < tile_tokens, c.recompute.checkpoint_every, c.head_chunks,
                    planned.memory.device_bytes, c.zero, planned.seconds_per_token());
}

// Candidates that follow each other in the list, and the least time that each of them takes.
struct Bounded {
  double seconds_per_token;
  std::span<const Candidate> candidates;

  bool is_group() const { return candidates.size() > 1; }
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

// Steps of one candidate, which keep least and most, and least in the largest groups: each share of a step's
// time is least at one of them.
double least_seconds(const std::vector<StepTime>& times) {
  const auto least = [&](const auto& of) { return of(*std::ranges::min_element(times, {}, of)); };
  double seconds = times.front().overhead_seconds +
                   least([](const StepTime& time) { return time.compute_seconds; }) +
                   least([](const StepTime& time) { return time.host_optimizer_waited_seconds; });
  for (const TrafficSeconds& each : times.front().traffic)
    seconds += least([&](const StepTime& time) {
      const auto found = std::ranges::find(time.traffic, each.kind, &TrafficSeconds::kind);
      return found == time.traffic.end() ? 0 : found->waited_seconds;
    });
  return seconds;
}

int64_t bytes_over(const PlannedMemory& memory) {
  return std::max<int64_t>(0, memory.device_over_bytes()) + std::max<int64_t>(0, memory.host_over_bytes());
}

// Of a configuration that does not fit. Larger groups hold fewer inputs, and nothing else that is less.
bool larger_groups_may_help(const Configuration& configuration, const PlannedMemory& memory) {
  const bool leave = configuration.offload.activations != Offload::none;
  return memory.device_over_bytes() <= memory.forecast.peak[MemoryCategory::activations] &&
         (leave || memory.host_over_bytes() <= 0);
}

bool keeps_attention(const Planned& planned) {
  const RecomputePlan& plan = planned.step.inputs.recompute;
  return plan.layers_keeping(KeptPart::attention) == plan.layers;
}
bool waits_for_activations(const StepTime& time) {
  return std::ranges::any_of(time.traffic, [](const TrafficSeconds& each) {
    return each.kind == TrafficKind::offloaded_activations && each.waited_seconds > 0;
  });
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

int64_t length_quantum(const PlanRequest& request, int devices) {
  if (!request.settings.strict_divisible) return kLengthQuantum;
  const SampleLayout of_most_ranks{.ring = request.pinned.sp.value_or(devices)};
  return round_up(kLengthQuantum, of_most_ranks.unit());
}

}  // namespace

PlannedMemory Search::memory_of(const Configuration& configuration, int64_t tokens) {
  ++counts_.forecasts;
  ForecastInputs inputs =
      planned_inputs(request_, configuration, tokens, fullest_sequence_rank(request_.model, configuration));
  return planned_memory(request_, inputs);
}

StepTime Search::time_of(const Configuration& configuration, int64_t tokens) {
  ++counts_.times;
  return step_time(planned_step(request_, configuration, tokens), request_.hardware);
}

Planned Search::planned(const Configuration& configuration, int64_t tokens) {
  ++counts_.times;
  ++counts_.forecasts;
  return make_planned(request_, configuration, tokens);
}

Search::Position Search::least_position(const Candidate& candidate, int64_t tokens) {
  // In groups, what the layers keep that stay on the device may be more with less that is kept in all:
  // inputs of groups in place of outputs of attention.
  // With Ulysses, the last layer's backward holds less where its attention's output was kept.
  const bool grouped = candidate.configuration.recompute.checkpoint_every > 1;
  const int64_t more = grouped                               ? ResidentLayers{}.resident_layers
                       : candidate.configuration.ulysses > 1 ? 1
                                                             : 0;
  const int64_t last = std::min(candidate.most_keeping, candidate.least_keeping + more);
  std::optional<Position> least;
  for (int64_t keeping = candidate.least_keeping; keeping <= last; ++keeping) {
    const Position position{keeping, memory_of(candidate.keeping(keeping), tokens)};
    if (!least || bytes_over(position.memory) < bytes_over(least->memory)) least = position;
    if (least->memory.fits()) break;
  }
  return *least;
}

Planned Search::fastest_from(int64_t least, const Candidate& candidate, int64_t tokens) {
  const auto fits = [&](int64_t keeping) { return memory_of(candidate.keeping(keeping), tokens).fits(); };
  const auto most_from = [&](int64_t low) {  // which fits
    int64_t high = candidate.most_keeping;
    while (low + 1 < high) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  };
  int64_t most = candidate.most_keeping;
  if (least < most && !fits(most)) {
    most = most_from(least);
    // With Ulysses, the last layer's backward holds less where its q, k and v were kept.
    const int64_t beyond = most + 2;
    if (candidate.configuration.ulysses > 1 && beyond < candidate.most_keeping && fits(beyond))
      most = most_from(beyond);
  }
  const auto seconds = [&](int64_t keeping) { return time_of(candidate.keeping(keeping), tokens).seconds; };
  if (candidate.configuration.recompute.checkpoint_every == 1) {
    Planned fastest = planned(candidate.keeping(least_of_convex(least, most, seconds)), tokens);
    return fastest.memory.fits() ? fastest : planned(candidate.keeping(most), tokens);
  }
  Planned best = planned(candidate.keeping(most), tokens);
  // What is sent away may also make other traffic wait.
  if (!waits_for_activations(best.time) && seconds(least) >= best.time.seconds) return best;
  // Not convex: the last layer of a group saves less than the others.
  int64_t fastest = most;
  double least_seconds = best.time.seconds;
  for (int64_t keeping = least; keeping < most; ++keeping)
    if (const double of_keeping = seconds(keeping); of_keeping < least_seconds)
      least_seconds = of_keeping, fastest = keeping;
  return fastest == most ? best : planned(candidate.keeping(fastest), tokens);
}

std::vector<Planned> Search::fit(const Candidate& candidate, int64_t tokens, double at_most_seconds_a_token) {
  std::vector<Planned> fitting;
  const int64_t fewest = candidate.configuration.recompute.checkpoint_every;
  for (int64_t layers = fewest; layers <= candidate.most_of_group; ++layers) {
    const Candidate of_groups = candidate.in_groups(layers);
    if (layers > fewest && least_seconds_a_token({&of_groups, 1}, tokens) > at_most_seconds_a_token) continue;
    const Position least = least_position(of_groups, tokens);
    if (least.memory.fits())
      fitting.push_back(fastest_from(least.keeping, of_groups, tokens));
    else if (!larger_groups_may_help(of_groups.configuration, least.memory))
      break;
    // Larger groups would only compute more.
    if (!fitting.empty() && keeps_attention(fitting.back()) && !waits_for_activations(fitting.back().time))
      break;
  }
  return fitting;
}

std::optional<Planned> Search::fastest(int devices, int64_t tokens) {
  check_request(request_, devices, tokens);
  const std::vector<Candidate> all = list_candidates(request_, devices, tokens);
  counts_.candidates += static_cast<int64_t>(all.size());
  const auto plainest_first = [&](const Bounded& a, const Bounded& b) {
    const auto key = [&](const Bounded& each) {
      return std::tuple(each.seconds_per_token, !each.is_group(), each.candidates.data());
    };
    return key(b) < key(a);
  };
  std::priority_queue<Bounded, std::vector<Bounded>, decltype(plainest_first)> open(plainest_first);
  const auto look_at = [&](std::span<const Candidate> candidates) {
    open.push({least_seconds_a_token(candidates, tokens), candidates});
  };
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && same_group(all[begin].configuration, all[end].configuration)) ++end;
    look_at(std::span(all).subspan(begin, end - begin));
  }
  std::vector<Planned> fitting;
  double least = std::numeric_limits<double>::infinity();
  while (!open.empty() && open.top().seconds_per_token < least * (1 + kAsFast)) {
    const Bounded next = open.top();
    open.pop();
    if (next.is_group()) {
      for (const Candidate& candidate : next.candidates) look_at({&candidate, 1});
    } else {
      for (Planned& fitted : fit(next.candidates.front(), tokens, least * (1 + kAsFast))) {
        least = std::min(least, fitted.seconds_per_token());
        fitting.push_back(std::move(fitted));
      }
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

double Search::least_seconds_a_token(std::span<const Candidate> candidates, int64_t tokens) {
  const auto time = [&](const Configuration& configuration) { return time_of(configuration, tokens); };
  const Candidate& first = candidates.front();
  double seconds = 0;
  if (candidates.size() > 1) {
    const auto most = std::ranges::max_element(candidates, {}, &Candidate::most_keeping);
    seconds = least_seconds_of_group(time(most->configuration), first.configuration.head_chunks);
  } else {
    std::vector<StepTime> times{time(first.keeping(first.most_keeping))};
    if (first.least_keeping < first.most_keeping) times.push_back(time(first.keeping(first.least_keeping)));
    if (first.most_of_group > first.configuration.recompute.checkpoint_every)
      times.push_back(time(first.in_groups(first.most_of_group).keeping(first.least_keeping)));
    seconds = times.size() == 1 ? times.front().seconds : least_seconds(times);
  }
  return seconds / static_cast<double>(first.configuration.samples() * tokens);
}

Planned Search::nearest(int devices, int64_t tokens) {
  check_request(request_, devices, tokens);
  std::optional<std::pair<int64_t, Configuration>> least;
  for (const Candidate& candidate : list_candidates(request_, devices, tokens))
    for (int64_t layers = candidate.configuration.recompute.checkpoint_every;
         layers <= candidate.most_of_group; ++layers) {
      const Candidate of_groups = candidate.in_groups(layers);
      const Position position = least_position(of_groups, tokens);
      const int64_t over = bytes_over(position.memory);
      if (!least || over < least->first) least = {over, of_groups.keeping(position.keeping)};
    }
  return planned(least->second, tokens);
}

bool Search::holds(const Candidate& candidate, int64_t tokens) {
  for (int64_t layers = candidate.configuration.recompute.checkpoint_every; layers <= candidate.most_of_group;
       ++layers) {
    const Candidate of_groups = candidate.in_groups(layers);
    const PlannedMemory memory = least_position(of_groups, tokens).memory;
    if (memory.fits()) return true;
    if (!larger_groups_may_help(of_groups.configuration, memory)) return false;
  }
  return false;
}

bool Search::holds(int devices, int64_t tokens) {
  const std::vector<Candidate> candidates = list_candidates(request_, devices, tokens);
  // The last ones shard and offload most.
  return std::any_of(candidates.rbegin(), candidates.rend(),
                     [&](const Candidate& candidate) { return holds(candidate, tokens); });
}

int64_t Search::shortest(int devices) const {
  const int64_t quantum = length_quantum(request_, devices);
  int ranks = devices;
  for (const Candidate& candidate : list_candidates(request_, devices, round_up(devices, quantum)))
    ranks = std::min(ranks, candidate.configuration.sequence_ranks());
  return round_up(ranks, quantum);
}

int64_t Search::longest(int devices, int64_t most_tokens) {
  // Lengths change which candidates there are (batches, tiles), and a tile's rows rise and fall with the
  // length: so every candidate of each length that is looked at is asked.
  const int64_t quantum = length_quantum(request_, devices);
  const int64_t below_shortest = shortest(devices) / quantum - 1;
  int64_t fits = below_shortest, over = most_tokens / quantum + 1;
  for (int64_t step = 1; fits + step < over;) {
    if (holds(devices, (fits + step) * quantum)) {
      fits += step;
      step *= 2;
    } else {
      over = fits + step;
    }
  }
  while (fits + 1 < over) {
    const int64_t middle = fits + (over - fits) / 2;
    (holds(devices, middle * quantum) ? fits : over) = middle;
  }
  return fits == below_shortest ? 0 : fits * quantum;
}

}  // namespace trireme
