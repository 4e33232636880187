#include "trireme/measure/simulated_rank.h"

#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/measure/memory_report.h"
#include "trireme/measure/spread.h"
#include "trireme/plan/plan_json.h"

namespace trireme {
namespace {

std::string seconds_text(double seconds) {
  return format_fixed(seconds, 4) + " s";
}

}  // namespace

SimulatedRank measure_simulated_rank(const SimulatedWorld& world, Engine& engine,
                                     const StepRateOptions& options,
                                     const std::optional<HardwareProfile>& hardware) {
  const auto predict = [&] {
    return predict_step(engine, *hardware, options.batch, options.sequence_tokens);
  };
  if (hardware) predict();  // a profile that does not fit is refused before the steps
  std::vector<double> copies;
  MeasuredSteps steps = synthetic_steps(engine, options);
  const auto copies_so_far = [&] { return world.stand_ins().seconds.total(); };
  double before = 0;
  steps.batches = [&, batches = steps.batches](int64_t step) {
    before = copies_so_far();
    return batches(step);
  };
  steps.on_step = [&](const StepResult& /*result*/) { copies.push_back(copies_so_far() - before); };
  StepRateOptions without_products = options;
  without_products.matmul_seconds = 0;
  const StepRate rate = measure_step_rate(engine, without_products, steps);

  SimulatedRank result;
  result.ranks = world.size();
  result.engine = engine.description();
  std::vector<double> own;
  for (auto step = static_cast<size_t>(options.warmup); step < copies.size(); ++step)
    own.push_back(rate.step_seconds[step] - copies[step]);
  result.compute_seconds = spread_of(own).median;
  result.copy_seconds = spread_of({copies.begin() + options.warmup, copies.end()}).median;
  result.sent_bytes = rate.sent_bytes;
  const PlannedStep planned = planned_step_of(engine, options.batch, options.sequence_tokens);
  result.tokens = planned.tokens();
  result.memory = engine.memory_account()->state();
  result.forecast = memory_forecast(planned.inputs);
  if (hardware) {
    result.profile = hardware->name;
    result.predicted = predict();
  }
  return result;
}

std::optional<double> SimulatedRank::network_seconds() const {
  if (!predicted) return std::nullopt;
  double seconds = 0;
  for (const TrafficSeconds& traffic : predicted->time.traffic)
    if (is_between_ranks(traffic.kind)) seconds += traffic.waited_seconds;
  return seconds;
}

std::optional<double> SimulatedRank::step_seconds() const {
  const auto network = network_seconds();
  if (!network) return std::nullopt;
  return compute_seconds + *network;
}

std::string SimulatedRank::text() const {
  std::string text =
      cat("simulated     rank 0 of ", ranks,
          " ranks; the others were absent, and what they would send was made ", "by local copies\n", engine,
          "\ncompute       ", seconds_text(compute_seconds), " a step (median), measured on this device; ",
          seconds_text(copy_seconds), " of the copies are left out\n");
  if (const auto network = network_seconds()) {
    text += cat("network       ", seconds_text(*network),
                " a step that the rank waits, modelled by the links of ", profile, "\n");
    for (const TrafficSeconds& traffic : predicted->time.traffic)
      if (is_between_ranks(traffic.kind))
        text += cat("  ", name_of(traffic.kind), ": waits ", seconds_text(traffic.waited_seconds), " of ",
                    seconds_text(traffic.seconds), ", ", format_bytes(static_cast<int64_t>(traffic.bytes)),
                    " sent\n");
    text +=
        cat("step          ", seconds_text(*step_seconds()), ", of measured compute and modelled network\n",
            "tokens/s      ", format_fixed(tokens / *step_seconds(), 1), " of all ", ranks, " ranks\n");
  } else {
    text += "network       not known: --predict names a profile with the links between ranks\n";
  }
  return text +
         cat("exchanges     ", format_bytes(sent_bytes), " sent by the rank in a step, counted\n",
             "memory        measured, of rank 0, which has the largest shares:\n",
             memory_report(memory, forecast),
             "not shown     loss and gradient norm, for the other ranks' numbers are absent; waits for ",
             "slower ranks\n");
}

Json SimulatedRank::to_json() const {
  Json json = {{"simulated_ranks", ranks},
               {"engine", engine},
               {"measured",
                {{"compute_s", compute_seconds},
                 {"copy_s", copy_seconds},
                 {"sent_bytes", sent_bytes},
                 {"peak_bytes", memory.peak_total_bytes},
                 {"peaks", bytes_json(memory.peak)},
                 {"at_peak", bytes_json(memory.at_peak)},
                 {"host_peak_bytes", memory.host.peak_total_bytes}}},
               {"forecast_bytes", forecast.peak_total_bytes}};
  if (const auto network = network_seconds()) {
    json["modelled"] = {{"profile", profile}, {"network_s", *network}};
    for (const TrafficSeconds& traffic : predicted->time.traffic)
      if (is_between_ranks(traffic.kind))
        json["modelled"]["traffic"][name_of(traffic.kind)] = traffic_json(traffic);
    json["measured_and_modelled"] = {{"step_s", *step_seconds()}, {"tokens_per_s", tokens / *step_seconds()}};
  }
  return json;
}

}  // namespace trireme
