#include "trireme/plan/plan_json.h"

#include "trireme/plan/plan_files.h"
#include "trireme/plan/step_causes.h"

namespace trireme {
namespace {

Json configuration_json(const PlanRequest& request, const Planned& planned) {
  const Configuration& c = planned.configuration;
  const int64_t resident = c.offload.activations == Offload::cpu ? planned.step.inputs.resident_layers : 0;
  Json json = {{"data_parallel", c.data_parallel},
               {"resident_layers", resident},
               {"keeping_layers", c.recompute.layers_keeping(KeptPart::attention)},
               {"keeping_qkv_layers", c.recompute.layers_keeping(KeptPart::qkv)},
               {"keeping_mlp_layers", c.recompute.layers_keeping(KeptPart::mlp)},
               {"layers", planned.step.inputs.model.layers},
               {"samples_per_step", c.samples()}};
  for (const ChosenOption& each : chosen_options(request, planned)) json[each.name] = each.value;
  json.erase("max_seq_length");  // tokens, beside the configuration
  json.erase("ring_method");     // the request's
  return json;
}

Json memory_json(const PlanRequest& request, const PlannedMemory& memory) {
  return {{"fits", memory.fits()},
          {"device_bytes", memory.device_bytes},
          {"device_limit_bytes", memory.limits.device_bytes},
          {"device_memory_bytes", request.hardware.memory_bytes},
          {"tensors_peak_bytes", memory.forecast.peak_total_bytes},
          {"category_peak_bytes", bytes_json(memory.forecast.peak)},
          {"fullest_category_bytes", bytes_json(memory.forecast.fullest.bytes)},
          {"beside_tensors_bytes", memory.beside_tensors_bytes()},
          {"machine_host_memory_bytes", request.hardware.is_gpu ? request.hardware.host_memory_bytes : 0},
          {"machine_host_bytes", memory.host_bytes},
          {"machine_host_limit_bytes", memory.limits.host_bytes},
          {"host_category_bytes", bytes_json(memory.forecast.host)}};
}

Json time_json(const Planned& planned) {
  const StepTime& time = planned.time;
  Json kinds = Json::object(), waited = Json::object(), traffic = Json::object(), causes = Json::object();
  for (const KindSeconds& kind : time.compute) kinds[name_of(kind.kind)] = kind.seconds;
  for (const TrafficSeconds& each : time.traffic) {
    waited[name_of(each.kind)] = each.waited_seconds;
    traffic[name_of(each.kind)] = each.bytes;
  }
  for (const CauseSeconds& each : seconds_by_cause(time)) causes[each.cause] = each.seconds;
  return {{"step_seconds", time.seconds},
          {"least_step_seconds", time.least_seconds},
          {"most_step_seconds", time.most_seconds},
          {"compute_seconds", time.compute_seconds},
          {"compute_kind_seconds", std::move(kinds)},
          {"waited_traffic_seconds", std::move(waited)},
          {"sent_traffic_bytes", std::move(traffic)},
          {"host_optimizer_waited_seconds", time.host_optimizer_waited_seconds},
          {"overhead_seconds", time.overhead_seconds},
          {"cause_seconds", std::move(causes)},
          {"step_tokens", planned.step.tokens()},
          {"tokens_per_second", time.tokens_per_second},
          {"tokens_per_second_each_device", planned.device_tokens_per_second()},
          {"model_flops", planned.step.model_flops()},
          {"mfu", time.mfu}};
}

Json planned_json(const PlanRequest& request, const Planned& planned) {
  return {{"tokens", planned.tokens()},
          {"devices", planned.configuration.ranks()},
          {"configuration", configuration_json(request, planned)},
          {"memory", memory_json(request, planned.memory)},
          {"time", time_json(planned)}};
}

}  // namespace

Json bytes_json(const MemoryBytes& bytes) {
  Json json = Json::object();
  for (const MemoryCategory category : kAllMemoryCategories) json[name_of(category)] = bytes[category];
  return json;
}

Json plan_json(const PlanRequest& request, const Plan& plan) {
  Json json = {{"format", "trireme plan 1"},
               {"model", request.model_name},
               {"hardware", request.hardware.name},
               {"hardware_description", request.hardware.description},
               {"devices_per_machine", request.hardware.devices_per_machine},
               {"memory_share", request.memory_share},
               {"precision", name_of(request.settings.precision)},
               {"objective", name_of(request.objective)},
               {"fits", plan.fits()},
               {"best", planned_json(request, plan.best)},
               {"longest_tokens", plan.longest_tokens},
               {"devices_needed", plan.devices_needed ? Json(*plan.devices_needed) : Json()},
               {"advice", plan.advice},
               {"search",
                {{"candidates", plan.counts.candidates},
                 {"times", plan.counts.times},
                 {"forecasts", plan.counts.forecasts}}}};
  Json runners_up = Json::array();
  for (const RunnerUp& runner : plan.runners_up) {
    Json each = planned_json(request, runner.planned);
    each.update({{"change", runner.change}, {"reason", runner.reason}, {"slower_share", runner.slower}});
    runners_up.push_back(std::move(each));
  }
  json["runners_up"] = std::move(runners_up);
  Json frontier = Json::array();
  for (const Planned& each : plan.frontier) frontier.push_back(planned_json(request, each));
  json["frontier"] = std::move(frontier);
  if (request.target_tokens_per_second > 0)
    json["target"] = {{"tokens_per_second", request.target_tokens_per_second},
                      {"reached", plan.reaches(request.target_tokens_per_second)}};
  if (request.token_budget > 0)
    json["budget"] = {{"tokens", request.token_budget},
                      {"seconds", plan.seconds_for(request.token_budget)},
                      {"device_hours", plan.device_hours_for(request.token_budget)}};
  Json estimated = Json::array(), figures = Json::array();
  for (const FigureSource& source : request.hardware.sources) {
    figures.push_back(to_json(source));
    if (source.origin == FigureOrigin::estimated) estimated.push_back(source.figure);
  }
  json["sureness"] = {{"time_error_share", request.hardware.time_error_share},
                      {"estimated_figures", std::move(estimated)},
                      {"figures", std::move(figures)}};
  return json;
}

}  // namespace trireme
