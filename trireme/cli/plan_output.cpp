#include "trireme/cli/plan_output.h"

#include <algorithm>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

bool is_chosen(const std::string& option) {
  static const std::vector<std::string> chosen{"ulysses",
                                               "ring",
                                               "zero",
                                               "offload_params",
                                               "offload_optimizer",
                                               "offload_activations",
                                               "recompute",
                                               "keep_fraction",
                                               "head_chunks",
                                               "tile_tokens",
                                               "logits_tile_tokens",
                                               "bf16",
                                               "fp16",
                                               "ring_method",
                                               "memory_budget",
                                               "host_memory_limit",
                                               "offload_dir",
                                               "offload_limit"};
  return std::ranges::find(chosen, option) != chosen.end();
}

// Options of train among the given ones that the plan leaves as they are.
TrainOptionValues given_options(const PlanFlags& flags, const OptionParser& parser) {
  OptionList list;
  EngineOptions engine = flags.engine;
  list_engine_options(list, engine);
  list_update_options(list, engine);
  TrainOptionValues values = flags.passed_on;
  for (const Option& option : list.options())
    if (option.is_flag() && parser.given(option.name) && !is_chosen(option.name))
      values.emplace_back(option.name, option.read());
  if (flags.engine.save_in_background) values.emplace_back("save_in_background", true);
  return values;
}

TrainOptionValues run_options(const PlanFlags& flags, const OptionParser& parser, const PlannedModel& model,
                              const PlanRequest& request, const Planned& planned) {
  const bool at_hub = !model.folder.empty() && !fs::exists(fs::path(model.name));
  const std::string folder = model.folder.empty() ? (flags.output / "model").string()
                             : at_hub             ? model.name
                                                  : fs::absolute(model.folder).lexically_normal().string();
  TrainOptionValues options{{"model_name_or_path", folder}};
  for (auto& each : train_options_of(request, planned)) options.push_back(std::move(each));
  options.emplace_back("device", request.hardware.is_gpu ? "cuda" : "cpu");
  if (request.hardware.threads > 0) options.emplace_back("threads", request.hardware.threads);
  if (uses_disk(planned.step.inputs.offload)) {
    options.emplace_back("offload_dir", flags.engine.offload.folder.string());
    if (flags.engine.offload.limit_bytes > 0)
      options.emplace_back("offload_limit", flags.engine.offload.limit_bytes);
  }
  for (auto& each : given_options(flags, parser)) options.push_back(std::move(each));
  return options;
}

// As a shell takes it.
std::string word_of(const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:,+-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

std::string as_flags(const TrainOptionValues& options) {
  std::string words;
  for (const auto& [name, value] : options)
    words += cat(words.empty() ? "" : " ", "--", name, " ", word_of(value));
  return words;
}

}  // namespace

std::string write_plan(const PlanFlags& flags, const OptionParser& parser, const PlannedModel& model,
                       const PlanRequest& request, const Planned& planned, const fs::path& folder) {
  const TrainOptionValues options = run_options(flags, parser, model, request, planned);
  std::string lines;
  if (model.folder.empty())
    lines += cat("trireme init --preset ", model.name, " --out ", (flags.output / "model").string(), "\n");
  const std::string data = "--train_file TEXT --output_dir RUN";
  if (folder.empty()) return lines + launch_line(request, planned, cat(as_flags(options), " ", data)) + "\n";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw ConfigError(cat("--output ", folder.string(), ": cannot make the folder: ", error.message()));
  const fs::path run = folder / "run.yaml", deepspeed = folder / "ds_config.json";
  replace_file(run,
               run_yaml(cat("trireme plan: ", planned.configuration.ranks(), " x ", request.hardware.name,
                            ". trireme train --config run.yaml --train_file TEXT"),
                        options));
  replace_file(deepspeed,
               deepspeed_config_of(request, planned, flags.engine.optimizer.max_grad_norm).dump(2) + "\n");
  return lines + launch_line(request, planned, cat("--config ", run.string(), " ", data)) + "\n";
}

}  // namespace trireme
