#include "trireme/plan/plan_files.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr int kStepsOfStage = 100;

const char* nvme_or(Offload offload) {
  return offload == Offload::disk ? "nvme" : name_of(offload);
}

}  // namespace

std::vector<ChosenOption> chosen_options(const PlanRequest& request, const Planned& planned) {
  const Configuration& c = planned.configuration;
  const bool gathers = c.ring > 1 && request.settings.gathers_keys;
  std::vector<ChosenOption> options{{"max_seq_length", planned.tokens(), {}},
                                    {"per_device_train_batch_size", c.batch, {}},
                                    {"gradient_accumulation_steps", c.accumulation, {}},
                                    {"ulysses", c.ulysses, {}},
                                    {"ring", c.ring, {}},
                                    {"ring_method", gathers ? "gather" : "ring", "ring"},
                                    {"head_chunks", c.head_chunks, 1},
                                    {"zero", c.zero, {}},
                                    {"offload_params", name_of(c.offload.parameters), "none"},
                                    {"offload_optimizer", name_of(c.offload.optimizer), "none"},
                                    {"offload_activations", name_of(c.offload.activations), "none"},
                                    {"recompute", name_of(c.recompute.policy), {}}};
  const RecomputePlan unless_given;
  for (const auto& [name, share] : kKeptShareOptions)
    options.push_back({name, c.recompute.*share, unless_given.*share});
  options.insert(options.end(), {{"checkpoint_every", c.recompute.checkpoint_every, 1},
                                 {"tile_tokens", c.tile_tokens, {}},
                                 {"logits_tile_tokens", c.logits_tile_tokens, {}}});
  return options;
}

TrainOptionValues train_options_of(const PlanRequest& request, const Planned& planned) {
  TrainOptionValues options;
  for (const ChosenOption& each : chosen_options(request, planned))
    if (each.value != each.usual) options.emplace_back(each.name, each.value);
  if (request.settings.precision != Precision::fp32)
    options.emplace_back(name_of(request.settings.precision), true);
  return options;
}

bool is_chosen_by_plan(const std::string& option) {
  const std::vector<ChosenOption> of_any_plan = chosen_options({}, {});
  return option == name_of(Precision::bf16) || option == name_of(Precision::fp16) ||
         std::ranges::find(of_any_plan, option, &ChosenOption::name) != of_any_plan.end();
}

std::string run_yaml(const std::string& title, const TrainOptionValues& options) {
  std::string text = cat("# ", title, "\n");
  for (const auto& [name, value] : options) text += cat(name, ": ", value.dump(), "\n");
  return text;
}

std::string stages_yaml(const std::string& title, const PlanRequest& request,
                        const std::vector<Planned>& stages, const std::vector<std::string>& rope_scalings) {
  std::string text = cat("# ", title, "\n");
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const char* begin = "- {";
    for (const ChosenOption& each : chosen_options(request, stages[stage])) {
      text += cat(begin, each.name, ": ", each.value.dump());
      begin = ", ";
    }
    if (const std::string& scaling = rope_scalings[stage]; !scaling.empty())
      text += cat(", rope_scaling: ", Json(scaling).dump());
    text += request.token_budget > 0 ? cat(", tokens: ", request.token_budget, "}\n")
                                     : cat(", steps: ", kStepsOfStage, "}\n");
  }
  return text;
}

Json deepspeed_config_of(const PlanRequest& request, const Planned& planned, double max_grad_norm) {
  const Configuration& c = planned.configuration;
  Json zero = {{"stage", c.zero}};
  if (c.offload.optimizer != Offload::none)
    zero["offload_optimizer"] = {{"device", nvme_or(c.offload.optimizer)}};
  if (c.offload.parameters != Offload::none)
    zero["offload_param"] = {{"device", nvme_or(c.offload.parameters)}};
  Json config = {{"train_batch_size", c.samples()},
                 {"train_micro_batch_size_per_gpu", c.batch},
                 {"gradient_accumulation_steps", c.accumulation},
                 {"gradient_clipping", max_grad_norm},
                 {"zero_optimization", std::move(zero)}};
  if (c.sequence_ranks() > 1) config["sequence_parallel_size"] = c.sequence_ranks();
  if (request.settings.precision != Precision::fp32)
    config[name_of(request.settings.precision)] = {{"enabled", true}};
  if (c.offload.activations == Offload::cpu)
    config["activation_checkpointing"] = {{"cpu_checkpointing", true}};
  return config;
}

std::string launch_line(const PlanRequest& request, const Planned& planned, const std::string& arguments) {
  const int machine = request.hardware.devices_per_machine, ranks = planned.configuration.ranks();
  if (ranks == 1) return cat("trireme train ", arguments);
  if (ranks <= machine) return cat("trireme launch --nproc_per_node ", ranks, " -- train ", arguments);
  return cat("trireme launch --hostfile HOSTS -- train ", arguments, "    # HOSTS: ", ranks / machine,
             " lines NAME slots=", machine);
}

}  // namespace trireme
