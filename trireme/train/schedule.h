// The learning rate of each step, by the formulas and names of transformers.optimization, so that recipes
// need no change. Steps count from 0: step 0 of a warm-up has learning rate 0, as there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/enum_names.h"

namespace trireme {

enum class ScheduleKind {
  linear,
  cosine,
  cosine_with_restarts,
  cosine_with_min_lr,
  polynomial,
  inverse_sqrt,
  constant,
  constant_with_warmup,
  warmup_stable_decay,
};
constexpr auto enum_names(ScheduleKind) {
  using enum ScheduleKind;
  return std::to_array<EnumName<ScheduleKind>>({{linear, "linear"},
                                                {cosine, "cosine"},
                                                {cosine_with_restarts, "cosine_with_restarts"},
                                                {cosine_with_min_lr, "cosine_with_min_lr"},
                                                {polynomial, "polynomial"},
                                                {inverse_sqrt, "inverse_sqrt"},
                                                {constant, "constant"},
                                                {constant_with_warmup, "constant_with_warmup"},
                                                {warmup_stable_decay, "warmup_stable_decay"}});
}

// How the learning rate of step n grows over W steps of warm-up.
enum class WarmupType {
  linear,  // n / W
  log,     // log(n + 1) / log(W), as in DeepSpeed's WarmupLR
};
constexpr auto enum_names(WarmupType) {
  using enum WarmupType;
  return std::to_array<EnumName<WarmupType>>({{linear, "linear"}, {log, "log"}});
}

// How the learning rate falls in the last steps of warmup_stable_decay, p from 0 to 1.
enum class DecayType {
  linear,         // 1 - p
  cosine,         // (1 + cos(2 pi num_cycles p)) / 2
  one_less_root,  // 1 - sqrt(p)
};
constexpr auto enum_names(DecayType) {
  using enum DecayType;
  return std::to_array<EnumName<DecayType>>(
      {{linear, "linear"}, {cosine, "cosine"}, {one_less_root, "1-sqrt"}});
}

// Hugging Face's lr_scheduler_kwargs; those that are given.
struct ScheduleKwargs {
  std::optional<double> num_cycles = {};       // cosine_with_restarts 1, else 0.5
  std::optional<double> min_lr = {};           // cosine_with_min_lr: one of these two
  std::optional<double> min_lr_rate = {};      // as a share of the peak
  std::optional<double> lr_end = {};           // polynomial 1e-7
  std::optional<double> power = {};            // polynomial 1
  std::optional<double> timescale = {};        // inverse_sqrt: steps; the warm-up's, or 10,000
  std::optional<double> num_decay_steps = {};  // warmup_stable_decay, which needs it
  std::optional<double> min_lr_ratio = {};     // warmup_stable_decay 0: where warm-up begins and decay ends
  std::optional<DecayType> decay_type = {};    // warmup_stable_decay cosine
};
// {"min_lr_rate": 0.1} -> ScheduleKwargs. ConfigError for text that is not JSON, unknown keys, wrong types
// and numbers that no schedule can use.
ScheduleKwargs parse_schedule_kwargs(const std::string& json_text);

struct Schedule {
  ScheduleKind kind = ScheduleKind::linear;
  ScheduleKwargs kwargs = {};
  double peak_learning_rate = 5e-5;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
  WarmupType warmup_type = WarmupType::linear;

  // ConfigError for kwargs of another kind, no minimum where the kind needs one, or an end above the peak.
  void check() const;
  // `step` in [0, total_steps).
  double learning_rate(int64_t step) const;
};

// `warmup_steps` of 1 or more is the number of warm-up steps; below 1 it is a share of `total_steps` (rounded
// up). `warmup_ratio`, from 0 to 1, counts when warmup_steps is 0.
int64_t resolve_warmup_steps(double warmup_steps, double warmup_ratio, int64_t total_steps);

}  // namespace trireme
