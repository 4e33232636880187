#include "trireme/plan/memory_change_sets.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/round_up.h"
#include "trireme/forecast/choose_resident_layers.h"
#include "trireme/forecast/memory_fit.h"
#include "trireme/plan/change_search.h"

namespace trireme {
namespace {

constexpr int kMostRanksTried = 1 << 16;
constexpr int64_t kLengthStep_tokens = 1024;

bool uses_new_disk(const PlannedStep& before, const PlannedStep& then) {
  return uses_disk(then.inputs.offload) && !uses_disk(before.inputs.offload);
}

int ranks_that_fit(PlannedStep step, const HardwareProfile& hardware, TensorLimits limits,
                   const ChangesAllowed& allowed) {
  for (;;) {
    limits.machine_ranks = hardware.machine_devices(step.inputs.ranks);
    if (allowed.allow_shares_of(step) && memory_cost(step, limits).fits(limits)) return step.inputs.ranks;
    auto more = with_more_sequence_ranks(std::move(step));
    if (!more || more->inputs.ranks > kMostRanksTried) return 0;
    step = std::move(*more);
  }
}

int64_t longest_that_fits(PlannedStep step, const TensorLimits& limits, const ChangesAllowed& allowed) {
  const SampleLayout layout{step.inputs.tokens, step.inputs.ulysses, step.inputs.ring};
  const int64_t quantum_tokens =
      allowed.strict_divisible ? round_up(kLengthStep_tokens, layout.unit()) : kLengthStep_tokens;
  const auto fits = [&](int64_t tokens) {
    step.inputs = with_batch(step.inputs, step.inputs.batch, tokens);
    return memory_cost(step, limits).fits(limits);
  };
  int64_t least = 0, most = step.inputs.tokens / quantum_tokens;
  while (most - least > 1) {
    const int64_t middle = least + (most - least) / 2;
    (fits(middle * quantum_tokens) ? least : most) = middle;
  }
  return least * quantum_tokens;
}

}  // namespace

int64_t StepCost::bytes_too_many(const TensorLimits& limits) const {
  int64_t bytes = std::max<int64_t>(0, device_bytes - limits.device_bytes);
  if (limits.host_bytes > 0) bytes += std::max<int64_t>(0, host_bytes - limits.host_bytes);
  return bytes;
}

StepCost memory_cost(PlannedStep& step, const TensorLimits& limits) {
  const MemoryForecast forecast = choose_resident_layers(
      step.inputs, limits.device_bytes,
      limits.host_bytes > 0 ? limits.host_bytes / limits.machine_ranks : MemoryFit::kNoLimit);
  return {forecast.peak_total_bytes, forecast.host.total() * limits.machine_ranks, 0, 0};
}

std::string MemoryChangeSet::flags(const PlannedStep& before) const {
  std::string text = joined(changes, " ", &MemoryChange::flags);
  if (step.inputs.micro_batches != before.inputs.micro_batches)
    text += cat(" --gradient_accumulation_steps ", step.inputs.micro_batches);
  if (uses_new_disk(before, step)) text += " --offload_dir DIR";
  return text;
}

Json MemoryChangeSet::deepspeed(const PlannedStep& before) const {
  Json patch = Json::object();  // by JSON pointers
  const auto set = [&](std::string key, const Json& value) {
    std::ranges::replace(key, '.', '/');
    patch["/" + key] = value;
  };
  for (const MemoryChange& change : changes)
    for (const DeepSpeedSetting& setting : change.deepspeed) set(setting.key, setting.value);
  if (step.inputs.micro_batches != before.inputs.micro_batches)
    set("gradient_accumulation_steps", step.inputs.micro_batches);
  return patch.empty() ? patch : patch.unflatten();
}

std::string MemoryChangeSet::trainer(const PlannedStep& before) const {
  std::string text;
  for (const MemoryChange& change : changes)
    if (!change.trainer.empty()) text += cat(text.empty() ? "" : ", ", change.trainer);
  if (step.inputs.micro_batches != before.inputs.micro_batches)
    text += cat(text.empty() ? "" : ", ", "gradient_accumulation_steps=", step.inputs.micro_batches);
  return text;
}

std::string MemoryChangeSet::trireme_alone() const {
  std::string text;
  for (const MemoryChange& change : changes)
    if (change.deepspeed.empty() && change.trainer.empty())
      text += cat(text.empty() ? "" : " ", change.flags);
  return text;
}

MemoryChanges find_memory_changes(const PlannedStep& step, const HardwareProfile& hardware,
                                  const TensorLimits& limits, const ChangesAllowed& allowed) {
  MemoryChanges answer{step, limits, {}, {}, std::nullopt, 0, 0};
  answer.cost = memory_cost(answer.step, answer.limits);
  const StepTime time = step_time(answer.step, hardware);
  answer.cost.seconds = time.seconds;
  answer.cost.tokens_per_second = time.tokens_per_second;
  if (answer.fits()) return answer;
  answer.sets = fitting_sets(step, hardware, answer.limits, allowed);
  if (!answer.sets.empty()) return answer;
  answer.nearest = nearest_set(step, hardware, answer.limits, allowed);
  answer.ranks_needed = ranks_that_fit(answer.nearest->step, hardware, limits, allowed);
  answer.longest_tokens = longest_that_fits(answer.nearest->step, answer.limits, allowed);
  return answer;
}

}  // namespace trireme
