#include "trireme/plan/plan.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/option_list.h"
#include "trireme/base/sizes.h"
#include "trireme/base/split.h"
#include "trireme/plan/check_request.h"
#include "trireme/plan/lacking_memory.h"
#include "trireme/plan/other_axes.h"

namespace trireme {
namespace {

constexpr int kMostDevices = 1 << 14;

// Those above `fewer` and up to `most` that runs may have: any of one machine, then whole machines.
std::vector<int> device_counts(const HardwareProfile& hardware, int fewer, int most) {
  std::vector<int> counts;
  const int machine = hardware.devices_per_machine;
  for (int count = fewer + 1; count <= std::min(machine, most); ++count) counts.push_back(count);
  for (int count = std::max(2, fewer / machine + 1) * machine; count <= most; count += machine)
    counts.push_back(count);
  return counts;
}

bool can_be_planned(const PlanRequest& request, int devices, int64_t tokens) {
  try {
    check_request(request, devices, tokens);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

bool held_on(Search& search, const PlanRequest& request, int devices) {
  return can_be_planned(request, devices, request.tokens) && search.holds(devices, request.tokens);
}

// nullopt: the options that are given do not allow so many, or they do not suffice.
std::optional<Planned> planned_on(Search& search, const PlanRequest& request, int devices) {
  if (!held_on(search, request, devices)) return std::nullopt;
  auto best = search.fastest(devices, request.tokens);
  if (best && best->time.tokens_per_second < request.target_tokens_per_second) return std::nullopt;
  return best;
}

// The fewest above those of the request, as far as more devices than some that suffice do too: bounds double,
// and what lies between the last two is bisected.
std::optional<int> more_devices(Search& search, const PlanRequest& request) {
  const auto suffice = [&](int devices) {
    return request.target_tokens_per_second > 0 ? planned_on(search, request, devices).has_value()
                                                : held_on(search, request, devices);
  };
  const auto is_ruled_out = [&](int devices) { return !can_be_planned(request, devices, request.tokens); };
  const HardwareProfile& hardware = request.hardware;
  const bool is_one_machine = hardware.across_machines.bytes_per_second <= 0;
  const int most = is_one_machine ? std::min(kMostDevices, hardware.devices_per_machine) : kMostDevices;
  for (int fewer = request.devices; fewer < most; fewer *= 2) {
    std::vector<int> counts = device_counts(hardware, fewer, std::min(2 * fewer, most));
    while (!counts.empty() && is_ruled_out(counts.back())) counts.pop_back();
    if (counts.empty() || !suffice(counts.back())) continue;
    size_t low = 0, high = counts.size() - 1;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      size_t tried = middle;
      while (tried < high && is_ruled_out(counts[tried])) ++tried;
      if (tried < high && !suffice(counts[tried]))
        low = tried + 1;
      else
        high = tried < high ? tried : middle;
    }
    while (is_ruled_out(counts[high])) ++high;
    return counts[high];
  }
  return std::nullopt;
}

void add_frontier(Plan& plan, const PlanRequest& request, Search& search) {
  constexpr int64_t kShortest = 8192;
  if (plan.longest_tokens == 0) return;
  std::vector<int64_t> lengths;
  for (int64_t tokens = kShortest; tokens < plan.longest_tokens; tokens *= 2) lengths.push_back(tokens);
  lengths.push_back(plan.longest_tokens);
  for (const int64_t tokens : lengths) {
    if (tokens == plan.best.tokens() && plan.fits()) {
      plan.frontier.push_back(plan.best);
    } else if (!can_be_planned(request, plan.devices, tokens)) {
      continue;
    } else if (auto fastest = search.fastest(plan.devices, tokens)) {
      plan.frontier.push_back(std::move(*fastest));
    }
  }
}

Plan plan_of(const PlanRequest& request, bool with_frontier) {
  Search search(request);
  Plan plan;
  plan.devices = request.devices;
  int64_t tokens = request.tokens;
  std::optional<Planned> best;
  if (request.objective == Objective::length) {
    const int64_t shortest = search.shortest(plan.devices);
    check_request(request, plan.devices, shortest);
    tokens = plan.longest_tokens = search.longest(plan.devices, kMostLength);
    if (tokens == 0)
      throw ConfigError(cat(request.model_name, " does not fit on ", plan.devices, " x ",
                            request.hardware.name, ": not even with samples of ", format_count(shortest),
                            " tokens; give more GPUs, or leave pinned options out"));
  } else if (request.objective == Objective::fewest_gpus) {
    check_request(request, plan.devices, tokens);
    for (const int devices : device_counts(request.hardware, 0, request.devices)) {
      best = planned_on(search, request, devices);
      if (!best) continue;
      plan.devices = devices;
      break;
    }
  }
  if (!best) best = search.fastest(plan.devices, tokens);
  plan.best = best ? *best : search.nearest(plan.devices, tokens);
  if (!plan.fits() || !plan.reaches(request.target_tokens_per_second)) {
    PlanRequest more = request;
    more.tokens = tokens;
    plan.devices_needed = more_devices(search, more);
  }
  if (with_frontier) {
    if (plan.longest_tokens == 0) plan.longest_tokens = search.longest(plan.devices, kMostLength);
    if (plan.fits()) plan.longest_tokens = std::max(plan.longest_tokens, tokens);
    if (plan.fits()) plan.runners_up = list_runners_up(request, plan.best);
    add_frontier(plan, request, search);
  }
  plan.advice = advice_on_other_axes(request, plan.best);
  for (std::string& line : advice_on_lacking_memory(request, plan.best))
    plan.advice.push_back(std::move(line));
  plan.counts = search.counts();
  return plan;
}

}  // namespace

Plan make_plan(const PlanRequest& request) {
  return plan_of(request, /*with_frontier=*/true);
}

std::vector<Plan> plan_stages(const PlanRequest& request, const std::vector<int64_t>& lengths) {
  std::vector<Plan> plans;
  for (const int64_t tokens : lengths) {
    PlanRequest stage = request;
    stage.tokens = tokens;
    plans.push_back(plan_of(stage, /*with_frontier=*/false));
  }
  return plans;
}

std::vector<int64_t> parse_stage_lengths(const std::string& text) {
  std::vector<int64_t> lengths;
  bool doubles = false;
  for (const std::string& word : split_at_commas(text, "--stages")) {
    if (word == "...") {
      if (lengths.empty() || doubles) break;
      doubles = true;
      continue;
    }
    const int64_t tokens = parse_count(word, "--stages");
    if (tokens < 1 || tokens > kMostTokens || (!lengths.empty() && tokens <= lengths.back()))
      throw ConfigError(cat("--stages is '", quotation(text),
                            "'; expected lengths that grow, such as 32k,128k,512k, up to ", kMostTokens));
    while (doubles && lengths.back() * 2 < tokens) lengths.push_back(lengths.back() * 2);
    doubles = false;
    lengths.push_back(tokens);
  }
  if (lengths.empty() || doubles)
    throw ConfigError(cat("--stages is '", quotation(text),
                          "'; expected lengths with commas, such as 32k,128k or 128k,...,1m, which doubles"));
  return lengths;
}

}  // namespace trireme
