#include "trireme/train/schedule.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/json.h"

namespace trireme {
namespace {

constexpr double kPi = 3.141592653589793;

double cosine(double cycles, double progress) {
  return 0.5 * (1 + std::cos(kPi * cycles * 2 * progress));
}

}  // namespace

ScheduleKwargs parse_schedule_kwargs(const std::string& json_text) {
  ScheduleKwargs kwargs;
  if (json_text.empty()) return kwargs;
  Json json;
  try {
    json = parse_json(json_text, "--lr_scheduler_kwargs");
  } catch (const DataError& error) {
    throw ConfigError(error.what());
  }
  if (!json.is_object())
    throw ConfigError(cat("--lr_scheduler_kwargs is ", quotation(json_text),
                          R"(; expected an object such as {"min_lr_rate": 0.1})"));
  for (const auto& [key, value] : json.items()) {
    if (!value.is_number())
      throw ConfigError(
          cat("--lr_scheduler_kwargs: ", quotation(key), " is ", quotation(value), "; expected a number"));
    const auto number = value.get<double>();
    if (key == "num_cycles")
      kwargs.num_cycles = number;
    else if (key == "min_lr")
      kwargs.min_lr = number;
    else if (key == "min_lr_rate")
      kwargs.min_lr_rate = number;
    else if (key == "lr_end")
      kwargs.lr_end = number;
    else if (key == "power")
      kwargs.power = number;
    else
      throw ConfigError(cat("--lr_scheduler_kwargs has no key '", quotation(key),
                            "'; expected num_cycles, min_lr, min_lr_rate, lr_end or power"));
  }
  return kwargs;
}

void Schedule::check() const {
  if (!(peak_learning_rate > 0) || !std::isfinite(peak_learning_rate))
    throw ConfigError(cat("the peak learning rate is ", peak_learning_rate, "; expected a number above 0"));
  if (kind == ScheduleKind::cosine_with_min_lr && kwargs.min_lr.has_value() == kwargs.min_lr_rate.has_value())
    throw ConfigError(
        R"(cosine_with_min_lr needs one of min_lr and min_lr_rate: --lr_scheduler_kwargs '{"min_lr_rate": 0.1}')");
  if (kind == ScheduleKind::polynomial && kwargs.lr_end >= peak_learning_rate)
    throw ConfigError(cat("polynomial: lr_end ", kwargs.lr_end, " must be below the peak learning rate ",
                          peak_learning_rate));
}

double Schedule::learning_rate(int64_t step) const {
  if (kind == ScheduleKind::constant) return peak_learning_rate;
  const auto steps = static_cast<double>(step), warmup = static_cast<double>(warmup_steps);
  if (step < warmup_steps && warmup_type == WarmupType::log)
    return peak_learning_rate * (std::log(steps + 1) / std::log(std::max(2.0, warmup)));
  if (step < warmup_steps) return peak_learning_rate * (steps / std::max(1.0, warmup));
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
                 ? kwargs.lr_end
                 : (peak_learning_rate - kwargs.lr_end) * std::pow(1 - progress, kwargs.power) +
                       kwargs.lr_end;
    case ScheduleKind::inverse_sqrt: {
      const double timescale = warmup_steps > 0 ? warmup : 10000;
      factor = 1 / std::sqrt((steps + timescale - warmup) / timescale);
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
