#include "trireme/model/lora_files.h"

#include <algorithm>
#include <array>
#include <set>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/joined.h"
#include "trireme/base/safetensors_writer.h"
#include "trireme/model/adapter_layout.h"
#include "trireme/model/computed_fields.h"
#include "trireme/model/language_model.h"
#include "trireme/model/make_adapters.h"
#include "trireme/model/unit_weights.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kLora = "LORA";
constexpr const char* kNoLora = "none";

// Of adapter_config.json, what nothing here depends on.
constexpr auto kWithoutMeaning =
    std::to_array({"auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "task_type",
                   "peft_version", "megatron_core", "loftq_config", "eva_config", "corda_config",
                   "lora_ga_config", "qalora_group_size", "runtime_config"});
constexpr const char* kWholeType = "whole_model_type";
// What is obeyed.
constexpr auto kObeyed =
    std::to_array({"peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "modules_to_save",
                   "ensure_weight_tying", "lora_dropout", "init_lora_weights", kWholeType});
// First values that leave the model's own weights as they are: others (pissa, olora, ...) change them.
constexpr auto kInitsOfAdaptersAlone = std::to_array({"gaussian", "eva", "orthogonal"});

bool means_nothing(const Json& value) {
  return value.is_null() || value == false || value == "none" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// Modules by the matrices that the folder holds: target_modules may be a regular expression, of which these
// are what it met.
std::vector<std::string> modules_in_weights(const fs::path& dir) {
  std::set<std::string> modules;
  const SafetensorsSet weights(dir, kAdapterWeightsFile);
  for (const auto& file : weights.files())
    for (const auto& [name, entry] : file->entries()) {
      for (const std::string& of_images : image_tensor_names())
        if (name.find(of_images) != std::string::npos)
          throw ConfigError(cat(
              entry.describe(),
              ": this adapter changes what reads images, which is not run here; expected one whose ",
              name.ends_with(kLoraA) || name.ends_with(kLoraB)
                  ? R"re(target_modules are of the language model alone, such as ".*language_model.*\.(q_proj|v_proj)")re"
                  : R"re(modules_to_save are of the language model alone, such as "language_model.norm")re"));
      if (!name.ends_with(kLoraA)) continue;
      const std::string module = name.substr(0, name.size() - kLoraA.size());
      modules.insert(module.substr(module.rfind('.') + 1));
    }
  return {modules.begin(), modules.end()};
}

std::vector<std::string> targets_of(const Json& json, const std::string& origin, const fs::path& dir) {
  const Json* value = find_field(json, "target_modules", origin);
  std::vector<std::string> held, targets;
  if (is_there(dir / kAdapterWeightsFile)) held = modules_in_weights(dir);
  if (value != nullptr && value->is_string()) {
    if (held.empty())
      throw DataError(cat(origin, ": target_modules is ", quotation(*value), ", and there is no ",
                          kAdapterWeightsFile, " beside it that holds matrices of such modules"));
    return held;
  }
  for (const Json& name : value != nullptr && value->is_array() ? *value : Json::array()) {
    if (!name.is_string())
      throw DataError(cat(origin, ": target_modules holds ", quotation(name), ", expected names"));
    targets.push_back(name.get<std::string>());
  }
  if (targets.empty())
    throw DataError(cat(origin, ": target_modules is ", quotation(value == nullptr ? Json() : *value),
                        ", expected a list of modules' names"));
  return targets;
}

std::vector<std::string> modules_to_save_of(const Json& json, const std::string& origin) {
  std::vector<std::string> modules;
  const Json value = json.value("modules_to_save", Json());
  if (!value.is_null() && !value.is_array())
    throw DataError(cat(origin, ": modules_to_save is ", quotation(value), ", expected a list of names"));
  for (const Json& name : value.is_null() ? Json::array() : value) {
    if (!name.is_string() || name.get<std::string>().empty())
      throw DataError(cat(origin, ": modules_to_save holds ", quotation(name), ", expected names"));
    modules.push_back(name.get<std::string>());
  }
  return sorted_unique(std::move(modules));
}

LoraConfig resolve(const LoraOptions& options) {
  if (options.adapter.empty())
    return {.rank = options.rank,
            .alpha = options.alpha,
            .rslora = options.rslora,
            .targets = lora_targets(options.targets),
            .modules_to_save = lora_modules_to_save(options.modules_to_save)};
  if (!given_lora_options(options).empty())
    throw ConfigError(cat("--adapter ", options.adapter.string(),
                          " says its rank, scale and modules itself; leave --",
                          joined(lora_option_names(), ", --"), " out"));
  return read_adapter_config(options.adapter).config;
}

}  // namespace

bool is_adapter_folder(const fs::path& dir) {
  return is_there(dir / kAdapterConfigFile);
}

AdapterFolder read_adapter_config(const fs::path& dir) {
  const fs::path file = dir / kAdapterConfigFile;
  if (!is_there(file))
    throw ConfigError(
        cat("--adapter ", dir.string(), ": there is no ", kAdapterConfigFile,
            " in it; expected a folder that PEFT's save_pretrained or trireme export wrote, or a "
            "checkpoint of a run with LoRA"));
  const std::string origin = file.string();
  const Json json = read_json(file);
  if (const std::string type = text_value(json, "peft_type", origin, ""); type != kLora)
    throw ConfigError(cat(origin, ": peft_type is '", quotation(type), "'; LORA alone is built"));
  for (const auto& [key, value] : json.items())
    if (!std::ranges::count(kWithoutMeaning, key) && !std::ranges::count(kObeyed, key) &&
        !means_nothing(value))
      throw ConfigError(cat(origin, ": ", quotation(key), " is ", quotation(value), ", which is not built",
                            key != "alpha_pattern"
                                ? ""
                                : "; PEFT writes it itself where an adapter changes experts "
                                  "(all-linear of a mixture), which is not built either: leave "
                                  "them out of target_modules"));
  if (const Json init = json.value("init_lora_weights", Json());
      !init.is_null() && !init.is_boolean() && !std::ranges::count(kInitsOfAdaptersAlone, init))
    throw ConfigError(cat(origin, ": init_lora_weights is ", quotation(init),
                          ", which changes the model's weights too; let PEFT convert the adapter "
                          "(save_pretrained with path_initial_model_for_weight_conversion)"));
  AdapterFolder adapter;
  adapter.config.rank = whole_number(json, "r", {1, kMostLoraRank}, origin);
  adapter.config.alpha = finite_number(json, "lora_alpha", kLoraAlphas.least, kLoraAlphas.most, origin);
  if (!kLoraAlphas.holds(adapter.config.alpha))
    throw DataError(cat(origin, ": lora_alpha is ", adapter.config.alpha, "; expected ", kLoraAlphas.text()));
  adapter.config.rslora = true_or_false(json, "use_rslora", origin, false);
  adapter.config.targets = targets_of(json, origin, dir);
  adapter.config.modules_to_save = modules_to_save_of(json, origin);
  adapter.config.ties_embedding = true_or_false(json, "ensure_weight_tying", origin, false);
  adapter.model = text_value(json, "base_model_name_or_path", origin, "");
  adapter.whole_type = text_value(json, kWholeType, origin, "");
  adapter.dropout = finite_number(json, "lora_dropout", 0, 1, origin, 0);
  return adapter;
}

std::string name_of_base_model(const fs::path& model_dir) {
  const fs::path path = fs::absolute(model_dir).lexically_normal();
  // models--org--name/snapshots/REVISION
  const fs::path snapshots = path.parent_path();
  const std::string folder = snapshots.parent_path().filename();
  constexpr std::string_view kModels = "models--", kSlash = "--";
  const size_t slash = folder.find(kSlash, kModels.size());
  if (snapshots.filename() != "snapshots" || !folder.starts_with(kModels) || slash == std::string::npos)
    return as_utf8(path.string());
  return folder.substr(kModels.size(), slash - kModels.size()) + "/" + folder.substr(slash + kSlash.size());
}

Json adapter_config(const LoraConfig& lora, const ModelLayout& layout, const std::string& model,
                    const std::string& whole_type) {
  Json config{{"peft_type", kLora},
              {"task_type", "CAUSAL_LM"},
              {"base_model_name_or_path", model},
              {"inference_mode", true},
              {"r", lora.rank},
              {"lora_alpha", lora.alpha},
              {"use_rslora", lora.rslora},
              {"lora_dropout", 0.0},
              {"bias", "none"},
              {"fan_in_fan_out", false},
              {"target_modules", adapted_modules(layout.adapters)}};
  if (!lora.modules_to_save.empty()) config["modules_to_save"] = lora.modules_to_save;
  if (layout.tied && layout.trained_unit(kEmbeddingUnit)) config["ensure_weight_tying"] = true;
  if (!whole_type.empty()) config[kWholeType] = whole_type;
  return config;
}

LoraConfig add_adapters(ModelLayout& layout, const ModelConfig& config, const LoraOptions& options) {
  if (!options.given()) return {};
  LoraConfig lora = resolve(options);
  const std::string file = (options.adapter / kAdapterConfigFile).string();
  layout.adapters = make_adapters(config, layout, lora,
                                  options.adapter.empty()
                                      ? OriginOfModules{"--lora_target_modules", "--lora_modules_to_save"}
                                      : OriginOfModules{file, file});
  return lora;
}

ModelConfig with_positions_of_adapter(const ModelConfig& model, const fs::path& adapter) {
  if (!is_there(adapter / "config.json")) return model;
  ModelConfig trained = read_model_config(adapter);
  if (const auto differs = difference_beside_positions(trained, model))
    throw ConfigError(cat("the adapter in ", adapter.string(), " was trained with ", differs->field, " ",
                          quotation(differs->first), ", and the model has ", quotation(differs->second),
                          "; give the model that it belongs to"));
  trained.whole_type = model.whole_type;
  return trained;
}

std::string lora_of_run(const ModelConfig& config, const LoraOptions& options) {
  if (!options.given()) return kNoLora;
  ModelLayout layout = make_model_layout(config);
  const LoraConfig lora = add_adapters(layout, config, options);
  return text_of_lora(lora, adapted_modules(layout.adapters));
}

std::string lora_of_checkpoint(const fs::path& checkpoint) {
  if (!is_adapter_folder(checkpoint)) return kNoLora;
  const LoraConfig lora = read_adapter_config(checkpoint).config;
  return text_of_lora(lora, lora.targets);
}

CheckpointReader open_adapter(const fs::path& dir) {
  return CheckpointReader(dir, kAdapterWeightsFile);
}

void write_adapter(const fs::path& out_dir, const ModelLayout& layout, const AdapterFolder& adapter,
                   const std::function<at::Tensor(int trained_unit)>& unit_flat) {
  const at::NoGradGuard no_grad;
  const bool inside = !adapter.whole_type.empty();
  const ModelLayout files = layout_of_adapter_files(layout);
  const auto names_of = [&](const ParameterSpec& spec) {
    std::vector<std::string> names{spec.name};
    for (const TiedName& second : files.tied_names)
      if (second.parameter == spec.name) names.push_back(second.name);
    for (std::string& name : names)
      if (inside) name = name_in_whole_model(name);
    return names;
  };
  std::vector<SafetensorsSpec> specs;
  for (const UnitSpec& unit : files.units)
    for (const ParameterSpec& spec : unit.parameters)
      for (const std::string& name : names_of(spec)) specs.push_back({name, "F32", spec.shape});
  SafetensorsWriter writer(out_dir / kAdapterWeightsFile, specs);
  for (size_t unit = 0; unit < files.units.size(); ++unit) {
    const at::Tensor flat = unit_flat(static_cast<int>(unit));
    for (const ParameterSpec& spec : files.units[unit].parameters) {
      const at::Tensor values = parameter_view(flat, spec).contiguous();
      for (const std::string& name : names_of(spec))
        writer.write(name, values.const_data_ptr<float>(), static_cast<int64_t>(values.nbytes()));
    }
  }
  writer.finish();
  Json config = adapter_config(adapter.config, layout, adapter.model, /*whole_type=*/"");
  if (inside) {  // what reads images may have modules of the same names
    config["target_modules"] =
        R"(model\.language_model\..*\.()" + joined(adapted_modules(layout.adapters), "|") + ")";
    Json modules = Json::array();
    for (const UnitSpec& unit : layout_of_whole_parameters(layout.adapters).units)
      for (const ParameterSpec& spec : unit.parameters) {
        const std::string name = name_in_whole_model(spec.name);
        modules.push_back(name.substr(0, name.rfind('.')));
      }
    if (!modules.empty()) config["modules_to_save"] = modules;
  } else if (config.contains("ensure_weight_tying")) {
    // PEFT ties the embedding where its own name is there.
    std::vector<std::string> modules = adapter.config.modules_to_save;
    modules.emplace_back("embed_tokens");
    config["modules_to_save"] = sorted_unique(std::move(modules));
  }
  replace_file(out_dir / kAdapterConfigFile, config.dump(2) + "\n");
}

}  // namespace trireme
