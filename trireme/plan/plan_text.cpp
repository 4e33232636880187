#include "trireme/plan/plan_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ranges>

#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/sizes.h"
#include "trireme/device/memory_advice.h"
#include "trireme/forecast/choose_resident_layers.h"
#include "trireme/plan/step_causes.h"

namespace trireme {
namespace {

constexpr size_t kMostRunnersUp = 10;

std::string share_text(int64_t bytes, int64_t of_bytes) {
  return cat(format_percent(static_cast<double>(bytes) / static_cast<double>(of_bytes)), " of ",
             format_bytes(of_bytes));
}

std::string count_text(int64_t count, const char* noun) {
  return cat(count, " ", noun, count == 1 ? "" : "s");
}

std::string row(const std::string& name, const std::string& text) {
  return cat("  ", name, std::string(name.size() < 18 ? 18 - name.size() : 1, ' '), text, "\n");
}

std::string memory_text(const PlanRequest& request, const Planned& planned) {
  const PlannedMemory& memory = planned.memory;
  const HardwareProfile& hardware = request.hardware;
  std::string text =
      row(cat("each ", hardware.device_noun()),
          cat(format_bytes(memory.device_bytes), ", ", share_text(memory.device_bytes, hardware.memory_bytes),
              " (at most ", format_percent(request.memory_share, 0), ": ",
              format_bytes(memory.limits.device_bytes), ")"));
  text += row("  by category", categories_text(memory.forecast.peak));
  text +=
      row("", cat("each at its own peak; together at most ", format_bytes(memory.forecast.peak_total_bytes)));
  if (const int64_t beside = memory.beside_tensors_bytes(); beside > 0)
    text += row("  beside tensors", cat(format_bytes(beside), ": context, libraries, fragments"));
  if (memory.forecast.host.total() > 0) {
    text += row("each host", cat(format_bytes(memory.host_bytes), " of ",
                                 count_text(hardware.machine_devices(planned.configuration.ranks()), "GPU"),
                                 hardware.host_memory_bytes > 0
                                     ? cat(", ", share_text(memory.host_bytes, hardware.host_memory_bytes))
                                     : std::string("; the profile does not say what there is")));
    text += row("  by category", cat(categories_text(memory.forecast.host), " for each GPU"));
  }
  return text;
}

struct BudgetCost {
  int64_t tokens = 0;
  double seconds = 0, device_hours = 0;
};

BudgetCost budget_cost(const PlanRequest& request, const Plan& plan) {
  const int64_t tokens = request.token_budget;
  return {tokens, plan.seconds_for(tokens), plan.device_hours_for(tokens)};
}

std::string budget_text(const PlanRequest& request, const BudgetCost& cost) {
  return cat(format_count(cost.tokens), " tokens: ", format_duration(cost.seconds), " (",
             format_fixed(cost.seconds / 86400, 1), " days), ", format_count(std::llround(cost.device_hours)),
             " ", request.hardware.device_noun(), "-hours");
}

std::string time_text(const PlanRequest& request, const Plan& plan) {
  const StepTime& time = plan.best.time;
  std::string text;
  text += row("step", cat(format_fixed(time.seconds, 2), " s (", format_fixed(time.least_seconds, 2), " to ",
                          format_fixed(time.most_seconds, 2), "), of ",
                          format_count(std::llround(plan.best.step.tokens())), " tokens"));
  std::vector<CauseSeconds> causes = seconds_by_cause(time);
  std::ranges::sort(causes, std::greater<>(), &CauseSeconds::seconds);
  std::string shares;
  for (const CauseSeconds& each : causes)
    if (each.seconds > 0.005 * time.seconds)
      shares +=
          cat(shares.empty() ? "" : ", ", each.cause, " ", format_percent(each.seconds / time.seconds, 0));
  text += row("  of it", shares);
  text += row("tokens/s",
              cat(rate_text(plan.best.device_tokens_per_second()), " each ", request.hardware.device_noun(),
                  ", ", rate_text(time.tokens_per_second), " in all"));
  text += row("MFU", cat(format_percent(time.mfu), " (causal model FLOPs, nothing twice)"));
  if (request.target_tokens_per_second > 0)
    text += row("target", cat(rate_text(request.target_tokens_per_second), " tokens/s: ",
                              plan.reaches(request.target_tokens_per_second) ? "reached" : "not reached",
                              !plan.reaches(request.target_tokens_per_second) && plan.devices_needed
                                  ? cat("; ", *plan.devices_needed, " would")
                                  : ""));
  if (request.token_budget > 0) text += row("budget", budget_text(request, budget_cost(request, plan)));
  return text;
}

// Of each stage, and of all.
std::string budgets_text(const PlanRequest& request, const std::vector<Plan>& stages) {
  std::string text = "\nbudget:\n";
  BudgetCost all;
  for (const Plan& stage : stages) {
    const BudgetCost cost = budget_cost(request, stage);
    text += row(format_count(stage.best.tokens()), budget_text(request, cost));
    all.tokens += cost.tokens;
    all.seconds += cost.seconds;
    all.device_hours += cost.device_hours;
  }
  return text + row("all stages", budget_text(request, all));
}

std::string runners_up_text(const Plan& plan) {
  std::string text;
  size_t width = 0;
  const size_t count = std::min(kMostRunnersUp, plan.runners_up.size());
  for (size_t i = 0; i < count; ++i) width = std::max(width, plan.runners_up[i].change.size());
  for (size_t i = 0; i < count; ++i) {
    const RunnerUp& runner = plan.runners_up[i];
    text += cat("  ", runner.change, std::string(width - runner.change.size() + 2, ' '), runner.reason, "\n");
  }
  return text.empty() ? "" : cat("\nwith another option:\n", text);
}

std::string frontier_text(const std::vector<Planned>& frontier) {
  if (frontier.empty()) return "";
  std::string text = "\nlength against speed:\n";
  for (const Planned& each : frontier) {
    char line[128];
    std::snprintf(line, sizeof(line), "  %12s tokens %10s tokens/s %5.1f %% MFU  ",
                  format_count(each.tokens()).c_str(), rate_text(each.time.tokens_per_second).c_str(),
                  100 * each.time.mfu);
    text += cat(line, configuration_text(each), "\n");
  }
  return text + cat("  ", frontier_samples_text(frontier), "\n");
}

// Those of the run's dtype, and those of none.
std::vector<std::string> figures_that_count(const PlanRequest& request, FigureOrigin origin) {
  std::vector<std::string> figures;
  const bool in_16_bit = request.settings.precision != Precision::fp32;
  for (const auto& [figure, its_origin, source] : request.hardware.sources) {
    const bool of_other_dtype = in_16_bit ? figure.ends_with("_32_bit")
                                          : figure.ends_with("_16_bit") || value_named<WorkKind>(figure);
    if (its_origin == origin && !of_other_dtype) figures.push_back(figure);
  }
  return figures;
}

std::string sureness_text(const PlanRequest& request) {
  const HardwareProfile& hardware = request.hardware;
  const auto count = [&](FigureOrigin origin) { return figures_that_count(request, origin).size(); };
  const std::string estimated = estimated_figures(request);
  return cat("\nhow sure: times within ", format_percent(hardware.time_error_share, 0),
             " (an estimate), by the profile ", hardware.name, " (", count(FigureOrigin::measured),
             " figures measured, ", count(FigureOrigin::published), " published",
             estimated.empty() ? "" : cat("; estimated: ", estimated),
             "). Memory is the forecast that the engine uses.\n");
}

}  // namespace

std::string rate_text(double per_second) {
  return per_second < 100 ? format_fixed(per_second, 1) : format_count(std::llround(per_second));
}

std::string estimated_figures(const PlanRequest& request) {
  return joined(figures_that_count(request, FigureOrigin::estimated));
}

std::string frontier_samples_text(const std::vector<Planned>& frontier) {
  const auto samples = [](const Planned& each) { return each.configuration.samples(); };
  const auto [fewest, most] = std::ranges::minmax(frontier | std::views::transform(samples));
  const std::string range =
      fewest < most ? cat(fewest, " to ", most, " samples") : count_text(most, "sample");
  return cat("each at ", range, " a step; short ones may be faster with more (--samples_per_step)");
}

std::string configuration_text(const Planned& planned) {
  const Configuration& c = planned.configuration;
  std::string text =
      cat("dp ", c.data_parallel, " x ulysses ", c.ulysses, c.ring > 1 ? cat(" x ring ", c.ring) : "",
          ", ZeRO ", c.zero, ", recompute ", c.recompute.description());
  for (const auto& [name, offload] : {std::pair("parameters", c.offload.parameters),
                                      {"optimizer", c.offload.optimizer},
                                      {"activations", c.offload.activations}})
    if (offload != Offload::none)
      text += cat(", ", name, " to ", offload == Offload::cpu ? "the host" : "disk");
  text += text_of_resident_layers(planned.step.inputs);
  if (c.head_chunks > 1) text += cat(", ", c.head_chunks, " head chunks");
  if (c.batch > 1) text += cat(", micro-batch ", c.batch);
  if (c.accumulation > 1) text += cat(", accumulation ", c.accumulation);
  return text;
}

std::string plan_text(const PlanRequest& request, const Plan& plan) {
  const Configuration& c = plan.best.configuration;
  std::string text =
      cat(request.model_name, ", samples of ", format_count(plan.best.tokens()), " tokens, on ", c.ranks(),
          " x ", request.hardware.name,
          request.hardware.description.empty() ? "" : cat(" (", request.hardware.description, ")"), "\n\n");
  text += plan.fits() ? "recommended:\n" : "DOES NOT FIT; the least over:\n";
  text += row("configuration", configuration_text(plan.best));
  text += row("samples a step",
              cat(c.samples(), " = ", count_text(c.data_parallel, "group"), " of ",
                  count_text(c.sequence_ranks(), "rank"), " x micro-batch ", c.batch, " x accumulation ",
                  c.accumulation,
                  request.samples_per_step == 0 ? "; --samples_per_step N asks for another number" : ""));
  text += row("tiles",
              cat(format_count(c.tile_tokens), " tokens, of the head ", format_count(c.logits_tile_tokens)));
  text += memory_text(request, plan.best);
  text += time_text(request, plan);
  if (!plan.fits())
    text += row("would fit", cat(plan.longest_tokens > 0 ? cat("at most ", format_count(plan.longest_tokens),
                                                               " tokens on ", plan.devices)
                                                         : cat("no length on ", plan.devices),
                                 plan.devices_needed ? cat("; this length on ", *plan.devices_needed) : ""));
  text += runners_up_text(plan) + frontier_text(plan.frontier);
  for (const std::string& line : plan.advice) text += cat("\n", line, "\n");
  return text + sureness_text(request);
}

std::string stages_text(const PlanRequest& request, const std::vector<Plan>& plans) {
  std::string text = cat(request.model_name, " on ", request.devices, " x ", request.hardware.name, "\n");
  for (const Plan& plan : plans) {
    char line[160];
    std::snprintf(line, sizeof(line), "  %12s tokens %10s tokens/s %10s each  ",
                  format_count(plan.best.tokens()).c_str(),
                  rate_text(plan.best.time.tokens_per_second).c_str(),
                  format_bytes(plan.best.memory.device_bytes).c_str());
    text += cat(line, plan.fits() ? "" : "DOES NOT FIT: ", configuration_text(plan.best), "\n");
  }
  if (request.token_budget > 0) text += budgets_text(request, plans);
  return text + sureness_text(request);
}

}  // namespace trireme
