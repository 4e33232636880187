#include "trireme/plan/plan_files.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr int kStepsOfStage = 100;

const char* nvme_or(Offload offload) {
  return offload == Offload::disk ? "nvme" : name_of(offload);
}

struct ChosenOption {
  const char* name;
  Json (*value)(const PlanRequest& request, const Planned& planned);
  Json usual;  // what train takes where the option is not given; null: it is always told
};

using Request = const PlanRequest&;
using Chosen = const Planned&;

const std::vector<ChosenOption>& chosen_options() {
  static const std::vector<ChosenOption> all{
      {"max_seq_length", [](Request, Chosen p) { return Json(p.tokens()); }, {}},
      {"per_device_train_batch_size", [](Request, Chosen p) { return Json(p.configuration.batch); }, {}},
      {"gradient_accumulation_steps",
       [](Request, Chosen p) { return Json(p.configuration.accumulation); },
       {}},
      {"ulysses", [](Request, Chosen p) { return Json(p.configuration.ulysses); }, {}},
      {"ring", [](Request, Chosen p) { return Json(p.configuration.ring); }, {}},
      {"ring_method",
       [](Request request, Chosen p) {
         return Json(p.configuration.ring > 1 && request.settings.gathers_keys ? "gather" : "ring");
       },
       "ring"},
      {"head_chunks", [](Request, Chosen p) { return Json(p.configuration.head_chunks); }, 1},
      {"zero", [](Request, Chosen p) { return Json(p.configuration.zero); }, {}},
      {"offload_params", [](Request, Chosen p) { return Json(name_of(p.configuration.offload_parameters)); },
       "none"},
      {"offload_optimizer",
       [](Request, Chosen p) { return Json(name_of(p.configuration.offload_optimizer)); }, "none"},
      {"offload_activations",
       [](Request, Chosen p) { return Json(name_of(p.configuration.offload_activations)); }, "none"},
      {"recompute", [](Request, Chosen p) { return Json(name_of(p.configuration.recompute)); }, {}},
      {"keep_fraction", [](Request, Chosen p) { return Json(p.step.inputs.recompute.keep_fraction); }, 1.0},
      {"keep_qkv_fraction", [](Request, Chosen p) { return Json(p.step.inputs.recompute.keep_qkv_fraction); },
       0.0},
      {"keep_mlp_fraction", [](Request, Chosen p) { return Json(p.step.inputs.recompute.keep_mlp_fraction); },
       0.0},
      {"tile_tokens", [](Request, Chosen p) { return Json(p.configuration.tile_tokens); }, {}},
      {"logits_tile_tokens", [](Request, Chosen p) { return Json(p.configuration.logits_tile_tokens); }, {}}};
  return all;
}

}  // namespace

TrainOptionValues train_options_of(const PlanRequest& request, const Planned& planned) {
  TrainOptionValues options;
  for (const ChosenOption& each : chosen_options())
    if (Json value = each.value(request, planned); value != each.usual)
      options.emplace_back(each.name, std::move(value));
  if (request.settings.precision != Precision::fp32)
    options.emplace_back(name_of(request.settings.precision), true);
  return options;
}

bool is_chosen_by_plan(const std::string& option) {
  return option == name_of(Precision::bf16) || option == name_of(Precision::fp16) ||
         std::ranges::any_of(chosen_options(), [&](const ChosenOption& each) { return option == each.name; });
}

std::string run_yaml(const std::string& title, const TrainOptionValues& options) {
  std::string text = cat("# ", title, "\n");
  for (const auto& [name, value] : options) text += cat(name, ": ", value.dump(), "\n");
  return text;
}

std::string stages_yaml(const std::string& title, const PlanRequest& request,
                        const std::vector<Planned>& stages) {
  std::string text = cat("# ", title, "\n");
  const auto count = static_cast<int64_t>(stages.size());
  for (const Planned& stage : stages) {
    const char* begin = "- {";
    for (const ChosenOption& each : chosen_options()) {
      text += cat(begin, each.name, ": ", each.value(request, stage).dump());
      begin = ", ";
    }
    text += request.token_budget > 0
                ? cat(", tokens: ", std::max<int64_t>(1, request.token_budget / count), "}\n")
                : cat(", steps: ", kStepsOfStage, "}\n");
  }
  return text;
}

Json deepspeed_config_of(const PlanRequest& request, const Planned& planned, double max_grad_norm) {
  const Configuration& c = planned.configuration;
  Json zero = {{"stage", c.zero}};
  if (c.offload_optimizer != Offload::none)
    zero["offload_optimizer"] = {{"device", nvme_or(c.offload_optimizer)}};
  if (c.offload_parameters != Offload::none)
    zero["offload_param"] = {{"device", nvme_or(c.offload_parameters)}};
  Json config = {{"train_batch_size", c.samples()},
                 {"train_micro_batch_size_per_gpu", c.batch},
                 {"gradient_accumulation_steps", c.accumulation},
                 {"gradient_clipping", max_grad_norm},
                 {"zero_optimization", std::move(zero)}};
  if (c.sequence_ranks() > 1) config["sequence_parallel_size"] = c.sequence_ranks();
  if (request.settings.precision != Precision::fp32)
    config[name_of(request.settings.precision)] = {{"enabled", true}};
  if (c.offload_activations == Offload::cpu)
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
