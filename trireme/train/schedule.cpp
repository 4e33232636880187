#include "trireme/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/json.h"
#include "trireme/base/option_list.h"

namespace trireme {
namespace {

double cosine(double cycles, double progress) {
  return 0.5 * (1 + std::cos(std::numbers::pi * cycles * 2 * progress));
}

constexpr const char* kDecayType = "decay_type";  // the one key whose value is a word

// Another key of lr_scheduler_kwargs, and the kinds that read it.
struct Kwarg {
  const char* name;
  std::optional<double> ScheduleKwargs::*value;
  OptionRange range;
  std::vector<ScheduleKind> kinds;
};
const std::vector<Kwarg>& known_kwargs() {
  using enum ScheduleKind;
  static const std::vector<Kwarg> all{
      {"num_cycles",
       &ScheduleKwargs::num_cycles,
       above(0),
       {cosine_with_restarts, cosine_with_min_lr, ScheduleKind::cosine, warmup_stable_decay}},
      {"min_lr", &ScheduleKwargs::min_lr, at_least(0), {cosine_with_min_lr}},
      {"min_lr_rate", &ScheduleKwargs::min_lr_rate, from_to(0, 1), {cosine_with_min_lr}},
      {"lr_end", &ScheduleKwargs::lr_end, at_least(0), {polynomial}},
      {"power", &ScheduleKwargs::power, above(0), {polynomial}},
      {"timescale", &ScheduleKwargs::timescale, above(0), {inverse_sqrt}},
      {"num_decay_steps", &ScheduleKwargs::num_decay_steps, at_least(0), {warmup_stable_decay}},
      {"min_lr_ratio", &ScheduleKwargs::min_lr_ratio, from_to(0, 1), {warmup_stable_decay}},
  };
  return all;
}

const Kwarg& find_kwarg(const std::string& name) {
  for (const Kwarg& kwarg : known_kwargs())
    if (kwarg.name == name) return kwarg;
  throw ConfigError(cat("--lr_scheduler_kwargs has no key '", quotation(name), "'; expected one of ",
                        joined(known_kwargs(), ", ", &Kwarg::name), ", ", kDecayType));
}

DecayType parse_decay_type(const Json& value) {
  if (const auto type = value.is_string() ? value_named<DecayType>(value.get<std::string>()) : std::nullopt)
    return *type;
  throw ConfigError(cat("--lr_scheduler_kwargs: ", kDecayType, " is ", quotation(value), "; expected ",
                        joined(enum_names(DecayType{}), ", ", &EnumName<DecayType>::name)));
}

// The last steps of warmup_stable_decay, `progress` of them done.
double decayed(DecayType type, double cycles, double progress) {
  switch (type) {
    case DecayType::linear:
      return 1 - progress;
    case DecayType::cosine:
      return cosine(cycles, progress);
    case DecayType::one_less_root:
      return 1 - std::sqrt(progress);
  }
  return 0;
}

double end_of(const ScheduleKwargs& kwargs) {
  return kwargs.lr_end.value_or(1e-7);
}

}  // namespace

ScheduleKwargs parse_schedule_kwargs(const std::string& json_text) {
  ScheduleKwargs kwargs;
  if (json_text.empty()) return kwargs;
  const Json json = parse_json_flag(json_text, "--lr_scheduler_kwargs");
  if (!json.is_object())
    throw ConfigError(cat("--lr_scheduler_kwargs is ", quotation(json_text),
                          R"(; expected an object such as {"min_lr_rate": 0.1})"));
  for (const auto& [key, value] : json.items()) {
    if (key == kDecayType) {
      kwargs.decay_type = parse_decay_type(value);
      continue;
    }
    const Kwarg& known = find_kwarg(key);
    if (!value.is_number() || !known.range.holds(value.get<double>()))
      throw ConfigError(
          cat("--lr_scheduler_kwargs: ", key, " is ", quotation(value), "; expected ", known.range.text()));
    kwargs.*known.value = value.get<double>();
  }
  return kwargs;
}

void Schedule::check() const {
  if (!(peak_learning_rate > 0) || !std::isfinite(peak_learning_rate))
    throw ConfigError(cat("the peak learning rate is ", peak_learning_rate, "; expected a number above 0"));
  for (const Kwarg& kwarg : known_kwargs())
    if (kwargs.*kwarg.value && !contains(kwarg.kinds, kind))
      throw ConfigError(cat("--lr_scheduler_kwargs: the schedule ", name_of(kind), " has no ", kwarg.name,
                            "; give --lr_scheduler_type ", name_of(kwarg.kinds.front()),
                            " with it, or leave it out"));
  if (kwargs.decay_type && kind != ScheduleKind::warmup_stable_decay)
    throw ConfigError(cat("--lr_scheduler_kwargs: the schedule ", name_of(kind), " has no ", kDecayType,
                          "; give --lr_scheduler_type warmup_stable_decay with it, or leave it out"));
  if (kind == ScheduleKind::cosine_with_min_lr && kwargs.min_lr.has_value() == kwargs.min_lr_rate.has_value())
    throw ConfigError(
        R"(cosine_with_min_lr needs one of min_lr and min_lr_rate: --lr_scheduler_kwargs '{"min_lr_rate": 0.1}')");
  if (kind == ScheduleKind::warmup_stable_decay) {
    if (!kwargs.num_decay_steps || *kwargs.num_decay_steps != std::floor(*kwargs.num_decay_steps))
      throw ConfigError(
          R"(warmup_stable_decay needs a whole number of steps: --lr_scheduler_kwargs '{"num_decay_steps": 100}')");
    if (static_cast<double>(warmup_steps) + *kwargs.num_decay_steps > static_cast<double>(total_steps))
      throw ConfigError(cat("warmup_stable_decay: ", warmup_steps, " steps of warm-up and num_decay_steps ",
                            *kwargs.num_decay_steps, " are more than the ", total_steps,
                            " steps there are; give fewer of either"));
  }
  if (kwargs.min_lr && *kwargs.min_lr > peak_learning_rate)
    throw ConfigError(cat("cosine_with_min_lr: min_lr ", *kwargs.min_lr,
                          " must not be above the peak learning rate ", peak_learning_rate));
  if (kind == ScheduleKind::polynomial && end_of(kwargs) >= peak_learning_rate)
    throw ConfigError(cat("polynomial: lr_end ", end_of(kwargs), " must be below the peak learning rate ",
                          peak_learning_rate));
}

double Schedule::learning_rate(int64_t step) const {
  if (kind == ScheduleKind::constant) return peak_learning_rate;
  const auto steps = static_cast<double>(step), warmup = static_cast<double>(warmup_steps);
  const double lowest = kwargs.min_lr_ratio.value_or(0);
  if (step < warmup_steps) {
    const double grown = warmup_type == WarmupType::log
                             ? std::log(steps + 1) / std::log(std::max(2.0, warmup))
                             : steps / std::max(1.0, warmup);
    return peak_learning_rate * (grown * (1 - lowest) + lowest);
  }
  const double decay_steps = std::max(1.0, static_cast<double>(total_steps) - warmup);
  const double progress = (steps - warmup) / decay_steps;
  double factor = 1;
  switch (kind) {
    case ScheduleKind::constant:
    case ScheduleKind::constant_with_warmup:
      break;
    case ScheduleKind::linear:
      factor = std::max(0.0, (static_cast<double>(total_steps) - steps) / decay_steps);
      break;
    case ScheduleKind::cosine:
      factor = std::max(0.0, cosine(kwargs.num_cycles.value_or(0.5), progress));
      break;
    case ScheduleKind::cosine_with_restarts:
      if (progress >= 1) return 0;
      factor = std::max(0.0, cosine(0.5, std::fmod(kwargs.num_cycles.value_or(1) * progress, 1.0)));
      break;
    case ScheduleKind::cosine_with_min_lr: {
      const double floor = kwargs.min_lr_rate ? *kwargs.min_lr_rate : *kwargs.min_lr / peak_learning_rate;
      factor = std::max(0.0, cosine(kwargs.num_cycles.value_or(0.5), progress) * (1 - floor) + floor);
      break;
    }
    case ScheduleKind::polynomial:
      return step > total_steps
                 ? end_of(kwargs)
                 : (peak_learning_rate - end_of(kwargs)) * std::pow(1 - progress, kwargs.power.value_or(1)) +
                       end_of(kwargs);
    case ScheduleKind::inverse_sqrt: {
      const double timescale = kwargs.timescale.value_or(warmup_steps > 0 ? warmup : 10000);
      factor = 1 / std::sqrt((steps + timescale - warmup) / timescale);
      break;
    }
    case ScheduleKind::warmup_stable_decay: {
      const double left = static_cast<double>(total_steps) - steps, decay = *kwargs.num_decay_steps;
      if (left > decay) break;
      const double share = decayed(kwargs.decay_type.value_or(DecayType::cosine),
                                   kwargs.num_cycles.value_or(0.5), 1 - left / decay);
      factor = std::max(0.0, share * (1 - lowest) + lowest);
      break;
    }
  }
  return peak_learning_rate * factor;
}

int64_t resolve_warmup_steps(double warmup_steps, double warmup_ratio, int64_t total_steps) {
  if (warmup_steps >= 1) return static_cast<int64_t>(warmup_steps);
  const double share = warmup_steps > 0 ? warmup_steps : warmup_ratio;
  return static_cast<int64_t>(std::ceil(share * static_cast<double>(total_steps)));
}

}  // namespace trireme
