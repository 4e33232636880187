#include "trireme/plan/plan_files.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {
namespace {

const char* nvme_or(Offload offload) {
  return offload == Offload::disk ? "nvme" : name_of(offload);
}

}  // namespace

TrainOptionValues train_options_of(const PlanRequest& request, const Planned& planned) {
  const Configuration& c = planned.configuration;
  TrainOptionValues options;
  options.emplace_back("max_seq_length", planned.tokens());
  options.emplace_back("per_device_train_batch_size", c.batch);
  options.emplace_back("gradient_accumulation_steps", c.accumulation);
  if (request.settings.precision != Precision::fp32)
    options.emplace_back(name_of(request.settings.precision), true);
  options.emplace_back("ulysses", c.ulysses);
  options.emplace_back("ring", c.ring);
  if (c.ring > 1 && request.settings.gathers_keys) options.emplace_back("ring_method", "gather");
  if (c.head_chunks > 1) options.emplace_back("head_chunks", c.head_chunks);
  options.emplace_back("zero", c.zero);
  const std::pair<const char*, Offload> offloads[] = {{"offload_params", c.offload_parameters},
                                                      {"offload_optimizer", c.offload_optimizer},
                                                      {"offload_activations", c.offload_activations}};
  for (const auto& [name, offload] : offloads)
    if (offload != Offload::none) options.emplace_back(name, name_of(offload));
  options.emplace_back("recompute", name_of(c.recompute));
  if (c.recompute != Recompute::full && c.keeping_layers < request.model.layers)
    options.emplace_back("keep_fraction",
                         static_cast<double>(c.keeping_layers) / static_cast<double>(request.model.layers));
  options.emplace_back("tile_tokens", c.tile_tokens);
  options.emplace_back("logits_tile_tokens", c.logits_tile_tokens);
  return options;
}

std::string run_yaml(const std::string& title, const TrainOptionValues& options) {
  std::string text = cat("# ", title, "\n");
  for (const auto& [name, value] : options) text += cat(name, ": ", value.dump(), "\n");
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
