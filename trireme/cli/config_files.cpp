#include "trireme/cli/config_files.h"

#include <algorithm>
#include <map>
#include <utility>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/option_value.h"
#include "trireme/cli/config_document.h"
#include "trireme/cli/deepspeed_config.h"
#include "trireme/cli/deepspeed_keys.h"
#include "trireme/cli/foreign_flags.h"
#include "trireme/cli/process_options.h"
#include "trireme/train/stage_plan.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

// A run's config.json says "cuda:1", of the rank that wrote it.
Json without_index(const Json& device) {
  if (!device.is_string()) return device;
  const auto text = device.get<std::string>();
  return text.substr(0, text.find(':'));
}

// A run's config.json holds the folder that followed from its output_dir, which may be another one now.
bool followed_from_output(const Json& document) {
  if (!document.contains("logging_dir") || !document.contains("output_dir")) return false;
  const Json &events = document["logging_dir"], &output = document["output_dir"];
  return events.is_string() && output.is_string() &&
         fs::path(events.get<std::string>()) == fs::path(output.get<std::string>()) / "runs";
}

// The first, given as a flag, displaces the second of a file: they contradict, or the second counts more.
constexpr std::pair<const char*, const char*> kDisplaces[] = {
    {"sp", "ulysses"},  // of which it is the product
    {"sp", "ring"},
    {"context_stages", "max_steps"},
    {"num_train_epochs", "max_steps"},
    {"warmup_ratio", "warmup_steps"},
    {"warmup_steps", "warmup_ratio"},
    {"validation_split_percentage", "eval_file"},
    {"eval_file", "validation_split_percentage"}};

// Whether a given flag displaces this value of a file, or leaves it without a meaning, for which it would be
// refused.
bool is_displaced(const std::string& option, const Json& document, const OptionParser& parser) {
  for (const auto& [given, displaced] : kDisplaces)
    if (option == displaced && parser.given(given)) return true;
  const auto is_given_as = [&](const char* flag, const Json& value) {
    return parser.given(flag) && parser.find(flag).read() == value;
  };
  const char* const schedule = "lr_scheduler_type";
  if (option == "lr_scheduler_kwargs")
    return document.contains(schedule) && parser.given(schedule) &&
           !is_given_as(schedule, document[schedule]);
  if (option == "warmup_ratio" || option == "warmup_steps") {
    if (!is_given_as(schedule, "constant")) return false;
    // A stage may set another schedule, and goes on with the warm-up.
    const Json stages = parser.given("context_stages") ? parser.find("context_stages").read()
                                                       : document.value("context_stages", Json());
    return !stages_set_schedule(stages.is_string() ? list_of_stages(stages.get<std::string>())
                                                   : stages.dump());
  }
  return option.starts_with("spike_") && is_given_as("on_spike", "off");
}

std::optional<BatchNumber> batch_number(const OptionParser& parser, const std::string& option,
                                        const std::string& file) {
  if (!parser.given(option)) return std::nullopt;
  const std::string source = parser.source_of(option), prefix = file + ": ";
  return BatchNumber{parser.find(option).read().get<int64_t>(),
                     source.starts_with(prefix) ? source.substr(prefix.size()) : source};
}

RunRanks run_ranks(const OptionParser& parser, int ranks, const std::string& file) {
  check_sharing_ranks(parser, ranks,
                      is_yaml(file) ? "" : cat(", or see  trireme config fix ", file, " --ranks ", ranks));
  return {ranks, sharing_ranks(parser)};
}

std::vector<std::string> add_deepspeed(const fs::path& path, OptionParser& parser, int ranks,
                                       bool& batch_follows) {
  const std::string file = path.string();
  const DeepSpeedConfig config = read_deepspeed_config(read_config_document(path).json, file);
  parser.add_file_values(config.values, Precedence::none);
  parser.add_file_values(config.defaults, Precedence::before_counts);
  batch_follows = config.train_batch.has_value();
  if (config.train_batch) {
    const std::string micro = "per_device_train_batch_size", accumulation = "gradient_accumulation_steps";
    const BatchNumbers given{config.train_batch, batch_number(parser, micro, file),
                             batch_number(parser, accumulation, file)};
    const Batch batch = resolve_batch(given, run_ranks(parser, ranks, file), file);
    const std::string source = cat(file, ": train_batch_size ", config.train_batch->value);
    parser.add_file_values({{micro, batch.micro, source}, {accumulation, batch.accumulation, source}},
                           Precedence::none);
  }
  return notes_of(config, file);
}

}  // namespace

bool is_deepspeed_name(const std::string& name) {
  return find_deepspeed_key(name) != nullptr || is_deepspeed_block(name);
}

std::string list_of_stages(const std::string& context_stages) {
  const fs::path file = context_stages;
  if (is_stage_list(context_stages) || (file.extension() != ".json" && !is_yaml(file))) return context_stages;
  const ConfigDocument document = read_document(file);
  if (!document.json.is_array())
    throw ConfigError(cat("--context_stages: ", context_stages, " holds ", quotation(document.json),
                          "; expected a list of stages"));
  return document.json.dump();
}

void ConfigFiles::list(OptionList& list) {
  list.group(OptionGroup::command);
  list.path("config", config,
            "YAML or JSON with names of these options; config.json of a run replays it; flags count more")
      .not_in_config();
  list.path("deepspeed", deepspeed, "DeepSpeed's ds_config.json; a flag that contradicts it is refused")
      .not_in_config()
      .value_is_optional();
  list.path("deepspeed_config", deepspeed_config, "the same as --deepspeed FILE").not_in_config();
}

std::vector<GivenValue> values_of_config(const Json& document, const std::string& file,
                                         const OptionParser& parser) {
  const std::vector<std::string> options = parser.names();
  std::vector<GivenValue> values;
  std::map<std::string, std::string> keys;  // as they are written
  Json named = Json::object();              // without what is null or empty text
  for (const auto& [key, value] : document.items()) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '-', '_');
    if (!keys.emplace(name, key).second)
      throw ConfigError(cat(file, ": ", quotation(key), " is there twice, with _ and with -"));
    const bool is_empty_text = value.is_string() && value.get<std::string>().empty();
    if (!value.is_null() && !is_empty_text) named[name] = value;
  }
  for (const auto& [name, key] : keys) {
    const std::string source = cat(file, ": ", quotation(key));
    const Json& value = document[key];
    try {
      if (is_deepspeed_name(name) && !contains(options, name))
        throw ConfigError("that is a key of DeepSpeed's configuration: give such a file as --deepspeed");
      if (name == "config") throw ConfigError("a file names no other --config");
      const Option& option = parser.find(name);
      if (value.is_null() || (name == "logging_dir" && followed_from_output(named)) ||
          is_displaced(name, named, parser))
        continue;
      for (const Json& each : value.is_array() ? value : Json::array({value}))
        refuse_foreign_value(name, each.is_string() ? each.get<std::string>() : each.dump());
      values.push_back(
          {name, parse_option_value(option, name == "device" ? without_index(value) : value), source});
    } catch (const ConfigError& error) {
      throw ConfigError(cat(source, ": ", error.what()));
    }
  }
  return values;
}

std::vector<std::string> ConfigFiles::add_to(OptionParser& parser, int ranks) {
  if (!config.empty())
    parser.add_file_values(values_of_config(read_config_document(config).json, config.string(), parser),
                           Precedence::before_counts);
  if (!deepspeed.empty() && !deepspeed_config.empty() && deepspeed != deepspeed_config)
    throw ConfigError("--deepspeed and --deepspeed_config name two files; give one of them");
  const fs::path file = deepspeed.empty() ? deepspeed_config : deepspeed;
  if (!file.empty()) return add_deepspeed(file, parser, ranks, batch_follows);
  if (parser.given("deepspeed"))
    throw ConfigError(
        "--deepspeed needs a file; give --deepspeed ds_config.json, or --deepspeed_config with it");
  return {};
}

}  // namespace trireme
