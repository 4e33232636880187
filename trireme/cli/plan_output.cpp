#include "trireme/cli/plan_output.h"

#include <algorithm>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/make_folder.h"
#include "trireme/base/quoted_for_shell.h"
#include "trireme/train/sample_options.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

// Of the machine, which the profile describes, and of disks, where the plan uses them.
bool is_told_by_plan(const std::string& option) {
  constexpr const char* kNames[] = {"memory_budget", "host_memory_limit", "offload_dir", "offload_limit"};
  return is_chosen_by_plan(option) || std::ranges::find(kNames, option) != std::end(kNames);
}

// Options of train among the given ones that the plan leaves as they are.
TrainOptionValues given_options(const PlanFlags& flags, const OptionParser& parser) {
  const OptionList list = list_of_copy(flags.engine, list_training_options);
  TrainOptionValues values = flags.passed_on;
  for (const Option& option : list.options())
    if (option.is_flag() && parser.given(option.name) && !is_told_by_plan(option.name))
      values.emplace_back(option.name, option.read());
  if (flags.engine.save_in_background) values.emplace_back("save_in_background", true);
  return values;
}

bool is_passed_on(const PlanFlags& flags, const char* option) {
  return std::ranges::find(flags.passed_on, option, &TrainOptionValues::value_type::first) !=
         flags.passed_on.end();
}

// `chosen` by the plan, with what it leaves as it is.
TrainOptionValues run_options(const PlanFlags& flags, const OptionParser& parser, const PlannedModel& model,
                              const PlanRequest& request, bool on_disk, const TrainOptionValues& chosen) {
  const bool at_hub = !model.folder.empty() && !fs::exists(fs::path(model.name));
  const std::string folder = model.folder.empty() ? (flags.output / "model").string()
                             : at_hub             ? model.name
                                                  : fs::absolute(model.folder).lexically_normal().string();
  TrainOptionValues options{{"model_name_or_path", folder}};
  options.insert(options.end(), chosen.begin(), chosen.end());
  options.emplace_back("device", request.hardware.is_gpu ? "cuda" : "cpu");
  if (request.hardware.threads > 0) options.emplace_back("threads", request.hardware.threads);
  if (on_disk) {
    options.emplace_back("offload_dir", flags.engine.offload.folder.string());
    if (flags.engine.offload.limit_bytes > 0)
      options.emplace_back("offload_limit", flags.engine.offload.limit_bytes);
  }
  if (asks_for_dropout(flags, model)) options.emplace_back("dropout", 0);
  for (auto& each : given_options(flags, parser)) options.push_back(std::move(each));
  return options;
}

// As a shell takes it.
std::string word_of(const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:,+-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  return quoted_for_shell(text);
}

std::string as_flags(const TrainOptionValues& options) {
  return joined(options, " ",
                [](const auto& option) { return cat("--", option.first, " ", word_of(option.second)); });
}

std::string init_line(const PlanFlags& flags, const PlannedModel& model) {
  if (!model.folder.empty()) return "";
  return cat("trireme init --preset ", model.name, " --out ", word_of((flags.output / "model").string()),
             "\n");
}

// What is the user's to name.
std::string data_words(const PlanFlags& flags, const PlannedModel& model) {
  return cat(lacks_mask_token(flags, model) ? " --mask_token_id ID" : "", " --train_file TEXT");
}
constexpr const char* kRunWords = " --output_dir RUN";

}  // namespace

bool lacks_mask_token(const PlanFlags& flags, const PlannedModel& model) {
  return !model.config.shifts_labels() && !is_passed_on(flags, "mask_token_id") &&
         (model.folder.empty() || !find_mask_token(model.folder));
}

bool asks_for_dropout(const PlanFlags& flags, const PlannedModel& model) {
  return !model.config.dropout.empty() && !is_passed_on(flags, "dropout");
}

std::string write_plan(const PlanFlags& flags, const OptionParser& parser, const PlannedModel& model,
                       const PlanRequest& request, const Planned& planned) {
  const TrainOptionValues options =
      run_options(flags, parser, model, request, uses_disk(planned.step.inputs.offload),
                  train_options_of(request, planned));
  const std::string init = init_line(flags, model), data = data_words(flags, model);
  const fs::path& folder = flags.output;
  if (folder.empty())
    return init + launch_line(request, planned, as_flags(options) + data + kRunWords) + "\n";
  make_asked_folder(folder, "--output ");
  const fs::path run = folder / "run.yaml";
  replace_file(run, run_yaml(cat("trireme plan: ", planned.configuration.ranks(), " x ",
                                 request.hardware.name, ". trireme train --config run.yaml", data),
                             options));
  replace_file(folder / "ds_config.json",
               deepspeed_config_of(request, planned, flags.engine.optimizer.max_grad_norm).dump(2) + "\n");
  return init + launch_line(request, planned, cat("--config ", word_of(run.string()), data, kRunWords)) +
         "\n";
}

std::string write_stages(const PlanFlags& flags, const OptionParser& parser, const PlannedModel& model,
                         const PlanRequest& request, const std::vector<Planned>& stages,
                         const std::vector<std::string>& rope_scalings) {
  const fs::path &folder = flags.output, list = folder / "stages.yaml", run = folder / "run.yaml";
  if (folder.empty())
    return "--output DIR writes run.yaml and stages.yaml, and tells the line that starts all stages\n";
  const bool on_disk =
      std::ranges::any_of(stages, [](const Planned& stage) { return uses_disk(stage.step.inputs.offload); });
  TrainOptionValues chosen{{"context_stages", fs::absolute(list).lexically_normal().string()}};
  if (request.settings.precision != Precision::fp32)
    chosen.emplace_back(name_of(request.settings.precision), true);
  make_asked_folder(folder, "--output ");
  const std::string data = data_words(flags, model);
  const std::string title =
      cat("trireme plan: ", stages.front().configuration.ranks(), " x ", request.hardware.name);
  replace_file(list, stages_yaml(title + ". Steps or tokens of each stage are yours to choose", request,
                                 stages, rope_scalings));
  replace_file(run, run_yaml(cat(title, ". trireme train --config run.yaml", data),
                             run_options(flags, parser, model, request, on_disk, chosen)));
  return init_line(flags, model) +
         launch_line(request, stages.front(), cat("--config ", word_of(run.string()), data, kRunWords)) +
         "\n";
}

}  // namespace trireme
