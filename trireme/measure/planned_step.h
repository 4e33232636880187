// A step of an assembled engine as the planner sees it, and what the planner says of it beside what was
// measured.
#pragma once

#include <string>

#include "trireme/base/json.h"
#include "trireme/engine/engine.h"
#include "trireme/plan/step_time.h"

namespace trireme {

// Of this rank: causal samples of one document.
PlannedStep planned_step_of(const Engine& engine, int64_t batch, int64_t tokens, int64_t accumulation = 1);

// As reports of measured steps have it.
Json traffic_json(const TrafficSeconds& traffic);

struct PredictedStep {
  StepTime time;
  // Of the rank where they differ most.
  int64_t forecast_bytes = 0;
  int64_t measured_bytes = 0;

  Json to_json() const;
  std::string text(double measured_seconds) const;
};

// After steps of that shape were made: their peak is read from the engine's account (before them, only the
// refusals mean something). Collective. Throws ConfigError: the profile is of another kind of device or
// number of threads, or lacks a link.
PredictedStep predict_step(Engine& engine, const HardwareProfile& hardware, int64_t batch, int64_t tokens);

}  // namespace trireme
