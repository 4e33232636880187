#include "trireme/cli/continued_options.h"

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/cli/config_files.h"
#include "trireme/cli/model_directory.h"
#include "trireme/model/lora_files.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/continued_run.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

// Of the run that is over.
constexpr const char* kOfThatRun[] = {
    "model_name_or_path",     "output_dir",           "overwrite_output_dir", "logging_dir",
    "resume_from_checkpoint", "resume_with_new_data", "continue_run",         "context_stages"};
// In the checkpoint's config.json, where the checkpoint is a model.
constexpr const char* kOfThatModel[] = {"rope_scaling", "rope_theta"};

}  // namespace

std::vector<std::string> add_continued_options(OptionParser& parser, const fs::path& run) {
  const fs::path checkpoint = continued_checkpoint(run), file = checkpoint / kTrainerStateFile;
  const Json state = read_json(file);
  Json options = object_value(state, "options", file.string());
  const bool had_stages = !text_value(options, "context_stages", file.string(), "").empty();
  const bool adapted = is_adapter_folder(checkpoint);
  // config.json of a run that was continued has every option, these too.
  const Json defaults = to_json(TrainOptions());
  const auto is_unchanged = [&](const std::string& name) {
    const Json value = parser.find(name).read();
    return value == defaults[name] ||
           (adapted && name == "adapter" && are_one(value.get<std::string>(), checkpoint));
  };
  std::vector<std::string> of_adapter = lora_option_names();  // in the checkpoint's adapter_config.json
  of_adapter.emplace_back("adapter");
  for (const std::string& name : of_adapter) {
    const std::string given_by = parser.source_of(name), flag = cat("--", name);
    if (given_by.empty() || (given_by != flag && is_unchanged(name))) continue;
    throw ConfigError(cat("--continue_run goes on with what ", run.string(), " trained, ",
                          adapted ? "its LoRA adapters" : "the whole model",
                          ", and its optimizer states; leave ", given_by, " out",
                          adapted ? ""
                                  : cat(", or begin LoRA on that model: --model_name_or_path ",
                                        checkpoint.string(), " --lora_r 16")));
  }
  for (const char* name : kOfThatRun) options.erase(name);
  for (const std::string& name : of_adapter) options.erase(name);
  for (const char* name : kOfThatModel)
    if (!adapted) options.erase(name);
  for (const Option& option : parser.options())
    if (option.machine_alone) options.erase(option.name);
  options["max_seq_length"] =
      whole_number(object_value(state, "loader", file.string()), "sequence_tokens", {1}, file.string());
  if (had_stages && !parser.given("context_stages") && !parser.given("max_steps") &&
      !parser.given("num_train_epochs"))
    throw ConfigError(cat("--continue_run ", run.string(),
                          ": that run had --context_stages, which are done; give --max_steps with "
                          "--max_seq_length, or new --context_stages"));
  parser.add_file_values(values_of_config(options, run.string(), parser), Precedence::before_counts);
  const std::string source = cat("--continue_run ", run.string());
  if (!adapted) {
    parser.add_file_values({{"model_name_or_path", checkpoint.string(), source}}, Precedence::none);
  } else {
    const std::string given =
        parser.given("model_name_or_path") ? parser.find("model_name_or_path").read().get<std::string>() : "";
    parser.add_file_values(
        {{"model_name_or_path", find_model_of_adapter(checkpoint, given).string(), source}},
        Precedence::before_counts);
    parser.add_file_values({{"adapter", checkpoint.string(), source}}, Precedence::none);
  }
  // The run's folder has checkpoints/step-N.
  const fs::path folder = fs::absolute(checkpoint / "..").lexically_normal().parent_path().parent_path();
  if (!parser.given("output_dir"))
    parser.add_file_values({{"output_dir", folder.string() + "-continued", source}}, Precedence::none);
  return {cat("a new run that begins with the weights and optimizer states of ", checkpoint.string(),
              ", and with its run's options where none are given; steps and data begin anew, in ",
              parser.find("output_dir").read().get<std::string>())};
}

}  // namespace trireme
