// What a run on P ranks would be for one of them, from one device: rank 0 takes real steps while the other
// ranks are absent (comm/simulated_world.h). Its memory and its own work are measured; the time on the
// network is the planner's, of a profile's links; its loss means nothing and is not told.
//
//   step = measured step - copies in place of exchanges + what the model says that ranks wait for exchanges
#pragma once

#include <optional>
#include <string>

#include "trireme/comm/simulated_world.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/measure/planned_step.h"
#include "trireme/measure/step_rate.h"

namespace trireme {

struct SimulatedRank {
  int ranks = 0;
  std::string engine;          // its description
  double compute_seconds = 0;  // of a step, the median: copies in place of exchanges are left out
  double copy_seconds = 0;     // the median of those
  int64_t sent_bytes = 0;      // in a step, as a real rank 0 counts them
  double tokens = 0;           // of a step, all ranks
  MemoryState memory;
  MemoryForecast forecast;
  std::string profile;                     // empty: none was given
  std::optional<PredictedStep> predicted;  // of the profile

  // Seconds of a step that the rank waits for the network, by the model. Of no profile: none.
  std::optional<double> network_seconds() const;
  std::optional<double> step_seconds() const;
  std::string text() const;
  Json to_json() const;
};

// Of `engine`, assembled in `world`; its steps change the weights. Without a profile no seconds of the
// network are told. Throws ConfigError as measure_step_rate() and predict_step().
SimulatedRank measure_simulated_rank(const SimulatedWorld& world, Engine& engine,
                                     const StepRateOptions& options,
                                     const std::optional<HardwareProfile>& hardware);

}  // namespace trireme
