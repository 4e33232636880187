#include "trireme/measure/planned_step.h"

#include <cmath>

#include <ATen/Parallel.h>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/forecast/memory_forecast.h"

namespace trireme {
namespace {

std::string line_of(const std::string& name, double seconds) {
  return cat("  ", name, std::string(std::max<size_t>(24, name.size()) - name.size(), ' '),
             format_fixed(seconds, 5), " s\n");
}

}  // namespace

PlannedStep planned_step_of(const Engine& engine, int64_t batch, int64_t tokens, int64_t accumulation) {
  PlannedStep step;
  step.inputs = engine.forecast_inputs(batch, tokens);
  step.attention_pairs = engine.config().attention_pairs(tokens, engine.options().sparse);
  step.inputs.micro_batches = accumulation;
  return step;
}

PredictedStep predict_step(Engine& engine, const HardwareProfile& hardware, int64_t batch, int64_t tokens) {
  const at::Device device = engine.options().device;
  if (hardware.is_gpu == device.is_cpu())
    throw ConfigError(cat("--predict: the profile ", hardware.name, " is of a ",
                          hardware.is_gpu ? "GPU" : "CPU", ", this run computes on ", device.str(),
                          "; expected a profile of the same kind of device"));
  const int threads = at::get_num_threads();
  if (hardware.threads > 0 && hardware.threads != threads)
    throw ConfigError(cat("--predict: the profile ", hardware.name, " was measured with ", hardware.threads,
                          " threads a rank, this run has ", threads,
                          "; expected as many. Measure again with --threads ", threads));
  const PlannedStep step = planned_step_of(engine, batch, tokens);
  PredictedStep predicted;
  predicted.time = step_time(step, hardware);
  const std::vector<int64_t> bytes{memory_forecast(step.inputs).peak_total_bytes,
                                   engine.memory_account()->state().peak_total_bytes};
  double worst = -1;
  for (const std::vector<int64_t>& of_rank : engine.agreement().gather(bytes)) {
    const double error =
        std::abs(std::log(static_cast<double>(of_rank[0]) / static_cast<double>(of_rank[1])));
    if (error <= worst) continue;
    worst = error;
    predicted.forecast_bytes = of_rank[0];
    predicted.measured_bytes = of_rank[1];
  }
  return predicted;
}

Json traffic_json(const TrafficSeconds& traffic) {
  return {{"bytes", traffic.bytes}, {"s", traffic.seconds}, {"waited_s", traffic.waited_seconds}};
}

Json PredictedStep::to_json() const {
  Json json = {{"step_s", time.seconds},
               {"compute_s", time.compute_seconds},
               {"overhead_s", time.overhead_seconds},
               {"forecast_bytes", forecast_bytes},
               {"measured_bytes", measured_bytes},
               {"kinds", Json::object()},
               {"traffic", Json::object()}};
  for (const KindSeconds& kind : time.compute)
    json["kinds"][name_of(kind.kind)] = {{"amount", kind.amount}, {"s", kind.seconds}};
  for (const TrafficSeconds& traffic : time.traffic)
    json["traffic"][name_of(traffic.kind)] = traffic_json(traffic);
  return json;
}

std::string PredictedStep::text(double measured_seconds) const {
  std::string text = cat("predicted     ", format_fixed(time.seconds, 4), " s, ",
                         format_fixed(100 * (time.seconds / measured_seconds - 1), 1),
                         " % of the measured step beside it; memory ", format_bytes(forecast_bytes),
                         " of measured ", format_bytes(measured_bytes), "\n");
  for (const KindSeconds& kind : time.compute) text += line_of(name_of(kind.kind), kind.seconds);
  for (const TrafficSeconds& traffic : time.traffic)
    text += line_of(name_of(traffic.kind), traffic.waited_seconds);
  return text + line_of("overhead", time.overhead_seconds);
}

}  // namespace trireme
