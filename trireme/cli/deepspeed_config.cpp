#include "trireme/cli/deepspeed_config.h"

#include <cmath>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/lower_case.h"
#include "trireme/cli/deepspeed_keys.h"
#include "trireme/shard/loss_scaler.h"
#include "trireme/shard/optimizer.h"

namespace trireme {
namespace {

bool is_of_type(const Json& value, DeepSpeedType type) {
  switch (type) {
    case DeepSpeedType::boolean:
      return value.is_boolean();
    case DeepSpeedType::whole:  // 5e8 is one too
      return value.is_number() && std::abs(value.get<double>()) <= kLargestExactWhole &&
             value.get<double>() == std::floor(value.get<double>());
    case DeepSpeedType::number:
      return value.is_number();
    case DeepSpeedType::text:
      return value.is_string();
    case DeepSpeedType::two_numbers:
      return value.is_array() && value.size() == 2 && value[0].is_number() && value[1].is_number();
    case DeepSpeedType::anything:
      return true;
  }
  return false;
}

class DeepSpeedReader {
 public:
  DeepSpeedReader(const Json& document, const std::string& file) : file_(file) { collect(document, ""); }

  DeepSpeedConfig read() {
    const std::string scheduler = scheduler_kind();
    if (!unknown_.empty()) refuse_unknown(unknown_.front());
    for (const DeepSpeedKey& key : deepspeed_keys()) read_rows(key);
    read_batch();
    read_sequence();
    read_loss_scale();
    read_optimizer();
    if (!scheduler.empty()) read_scheduler(scheduler);
    read_lines();
    read_folders();
    return std::move(config_);
  }

 private:
  // Values by path, without those that are null or "auto".
  void collect(const Json& object, const std::string& prefix) {
    for (const auto& [name, value] : object.items()) {
      const std::string path = prefix + name;
      if (name.find('.') != std::string::npos)
        refuse(path, value, "DeepSpeed's keys have no dots; write objects {...} of keys in one another");
      const DeepSpeedKey* key = find_deepspeed_key(path);
      if (value.is_null()) {
        if (key == nullptr && !is_deepspeed_block(path)) unknown_.push_back(path);
      } else if (key != nullptr) {
        if (value == "auto") {
          auto_.insert(path);
          continue;
        }
        if (!is_of_type(value, key->type)) refuse(path, value, cat("expected ", name_of(key->type)));
        // A whole number may be written as 5e8.
        values_[path] = key->type == DeepSpeedType::whole ? Json(value.get<int64_t>()) : value;
      } else if (!is_deepspeed_block(path)) {
        unknown_.push_back(path);
      } else if (value.is_object()) {
        collect(value, path + ".");
      } else {
        refuse(path, value, "expected an object {...} of keys");
      }
    }
  }

  [[noreturn]] void refuse(const std::string& path, const Json& value, const std::string& why) const {
    throw ConfigError(cat(file_, ": \"", quotation(path), "\" is ", quotation(value), "; ", why));
  }
  [[noreturn]] void refuse_unknown(const std::string& path) const {
    const std::string nearest = nearest_deepspeed_key(path);
    throw ConfigError(cat(file_, ": DeepSpeed has no key \"", quotation(path), "\"",
                          nearest.empty() ? "; leave it out (docs/deepspeed-config.md lists the keys)"
                                          : cat("; did you mean \"", nearest, "\"?")));
  }

  const Json* find(const std::string& path) const {
    const auto found = values_.find(path);
    return found == values_.end() ? nullptr : &found->second;
  }
  std::string source(const std::string& path) const { return cat(file_, ": ", path); }
  void give(const std::string& option, const Json& value, const std::string& path) {
    config_.values.push_back({option, value, source(path)});
  }
  void tell(const std::string& path, const std::string& reason) {
    config_.without_meaning[reason].push_back(path);
  }

  void read_rows(const DeepSpeedKey& key) {
    for (const auto& [path, value] : values_) {
      if (find_deepspeed_key(path) != &key) continue;
      if (key.use == DeepSpeedUse::nothing) tell(path, key.answer);
      if (value == key.harmless) continue;
      if (key.use == DeepSpeedUse::refused) refuse(path, value, key.answer);
      if (key.use == DeepSpeedUse::option) give(key.option, option_value(key, path, value), path);
    }
  }
  Json option_value(const DeepSpeedKey& key, const std::string& path, const Json& value) const {
    if (key.values.empty()) return value;
    for (const DeepSpeedKey::Named& named : key.values)
      if (named.deepspeed == value) return named.ours;
    const auto text_of = [](const DeepSpeedKey::Named& named) { return quotation(named.deepspeed); };
    refuse(path, value, cat("expected ", joined(key.values, " or ", text_of)));
  }

  void read_batch() {
    const Json* train = find("train_batch_size");
    if (train == nullptr) return;
    const auto samples = train->get<int64_t>();
    if (samples < 1) refuse("train_batch_size", *train, "expected 1 or more");
    config_.train_batch = BatchNumber{samples, "train_batch_size"};
  }

  void read_sequence() {
    const std::string block = "sequence_parallelism.";
    const Json *enabled = find(block + "enabled"), *degree = find(block + "degree"),
               *type = find(block + "sequence_parallel_type");
    if (type != nullptr && *type != "ulysses" && *type != "ring")
      refuse(block + "sequence_parallel_type", *type, R"(expected "ulysses" or "ring")");
    if (enabled != nullptr && *enabled == false) {
      give("sp", 1, block + "enabled");
    } else if (degree != nullptr) {
      give(type == nullptr ? std::string("sp") : type->get<std::string>(), *degree, block + "degree");
    } else if (enabled != nullptr || type != nullptr) {
      const char* const given = enabled != nullptr ? "enabled" : "sequence_parallel_type";
      refuse(block + given, *find(block + given), cat("give ", block, "degree with it, or leave it out"));
    }
  }

  void read_loss_scale() {
    const std::string path = "fp16.initial_scale_power";
    const Json* power = find(path);
    if (power == nullptr) return;
    const double scale = std::exp2(power->get<double>());
    if (*power < 0 || scale > kLargestLossScale)
      refuse(path, *power, cat("expected a number from 0 to ", std::log2(kLargestLossScale)));
    give("initial_loss_scale", scale, path);
  }

  void read_optimizer() {
    const std::string params = "optimizer.params.";
    const Json *type = find("optimizer.type"), *adam_w_mode = find(params + "adam_w_mode"),
               *betas = find(params + "betas"), *decay = find(params + "weight_decay");
    const std::string kind = type == nullptr ? "" : lower_case(type->get<std::string>());
    if (type != nullptr) give("optim", our_optimizer(kind, *type), "optimizer.type");
    if (betas != nullptr) {
      give("adam_beta1", (*betas)[0], params + "betas");
      give("adam_beta2", (*betas)[1], params + "betas");
    }
    if (adam_w_mode == nullptr) return;
    const bool l2 = *adam_w_mode == false && kind == "adam";
    if (l2 && (decay == nullptr || *decay != 0))
      refuse(params + "adam_w_mode", *adam_w_mode,
             "that is Adam with L2 decay, which is not built; give true, which is AdamW, or weight_decay 0, "
             "where both are one");
    tell(params + "adam_w_mode", l2 ? "without weight decay Adam and AdamW are one"
                                    : "AdamW is what is asked: weight decay is decoupled");
  }
  std::string our_optimizer(const std::string& kind, const Json& type) const {
    std::string names;
    for (const OptimizerKind* known : optimizers()) {
      if (known->name == kind || (known->name == "adamw_torch" && (kind == "adam" || kind == "adamw")))
        return known->name;
      names += cat(", ", known->name == "adamw_torch" ? "AdamW" : known->name);
    }
    refuse("optimizer.type", type, cat("not built; there are ", names.substr(2)));
  }

  // Empty: none. The keys of a schedule that is not built are no typing errors.
  std::string scheduler_kind() const {
    const Json* type = find("scheduler.type");
    if (type == nullptr) {
      for (const auto& [path, value] : values_)
        if (path.starts_with("scheduler.params."))
          refuse(path, value,
                 "there is no \"scheduler.type\"; expected WarmupLR, WarmupDecayLR or WarmupCosineLR");
      return "";
    }
    for (const char* known : {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"})
      if (*type == known) return known;
    refuse("scheduler.type", *type,
           "not built; there are WarmupLR, WarmupDecayLR and WarmupCosineLR, and without the block "
           "--lr_scheduler_type");
  }

  void read_scheduler(const std::string& kind) {
    const std::string params = "scheduler.params.";
    const bool cosine = kind == "WarmupCosineLR";
    give("lr_scheduler_type",
         cosine               ? "cosine_with_min_lr"
         : kind == "WarmupLR" ? "constant_with_warmup"
                              : "linear",
         "scheduler.type");
    const Json *total = find(params + "total_num_steps"), *floor = find(params + "cos_min_ratio");
    const auto give_default = [&](const std::string& option, const Json& value, const std::string& key) {
      if (!was_written(params + key))
        config_.defaults.push_back({option, value, cat(source("scheduler"), ", which has no ", key)});
    };
    give_default("warmup_steps", 1000, "warmup_num_steps");
    give_default("warmup_type", "log", "warmup_type");
    if (kind == "WarmupDecayLR" && !was_written(params + "warmup_max_lr"))
      refuse("scheduler.type", kind,
             "without warmup_max_lr its peak is 0.001, whatever optimizer.params.lr is; give warmup_max_lr");
    if (total != nullptr && kind == "WarmupLR")
      refuse(params + "total_num_steps", *total,
             cat(kind, " has no such key; leave it out, and give --max_steps for the length of the run"));
    if (total != nullptr) give("max_steps", *total, params + "total_num_steps");
    if (!cosine && floor != nullptr)
      refuse(params + "cos_min_ratio", *floor, cat(kind, " has no such key; it is WarmupCosineLR's"));
    if (!cosine) return;
    const auto kwargs = [](const Json& share) { return Json{{"min_lr_rate", share}}.dump(); };
    if (floor != nullptr) give("lr_scheduler_kwargs", kwargs(*floor), params + "cos_min_ratio");
    give_default("lr_scheduler_kwargs", kwargs(1e-4), "cos_min_ratio");
  }

  void read_lines() {
    if (const Json* steps = find("steps_per_print"))
      config_.defaults.push_back({"logging_steps", *steps, source("steps_per_print")});
  }

  void read_folders() {
    for (const char* what : {"offload_optimizer", "offload_param"}) {
      const std::string block = cat("zero_optimization.", what, ".");
      const Json *device = find(block + "device"), *folder = find(block + "nvme_path");
      if (folder == nullptr) continue;
      if (device != nullptr && *device == "nvme")
        give("offload_dir", *folder, block + "nvme_path");
      else
        tell(block + "nvme_path", "nothing is offloaded there: device is not nvme");
    }
    const Json *output = find("tensorboard.output_path"), *job = find("tensorboard.job_name"),
               *enabled = find("tensorboard.enabled");
    if (enabled != nullptr && *enabled == true && output != nullptr &&
        !output->get_ref<const std::string&>().empty()) {
      const std::filesystem::path folder = output->get<std::string>();
      give("logging_dir", (folder / (job == nullptr ? "DeepSpeedJobName" : job->get<std::string>())).string(),
           "tensorboard.output_path");
      return;
    }
    for (const char* path : {"tensorboard.output_path", "tensorboard.job_name"})
      if (find(path) != nullptr) tell(path, "TensorBoard's event files lie in --output_dir");
  }

  // "auto" counts.
  bool was_written(const std::string& path) const { return find(path) != nullptr || auto_.contains(path); }

  const std::string file_;
  std::map<std::string, Json> values_;
  std::set<std::string> auto_;
  std::vector<std::string> unknown_;
  DeepSpeedConfig config_;
};

}  // namespace

DeepSpeedConfig read_deepspeed_config(const Json& document, const std::string& file) {
  return DeepSpeedReader(document, file).read();
}

std::vector<std::string> notes_of(const DeepSpeedConfig& config, const std::string& file) {
  std::vector<std::string> lines;
  for (const auto& [reason, keys] : config.without_meaning) {
    lines.push_back(cat(file, ": no meaning for Trireme: ",
                        joined(keys, ", ", [](const std::string& key) { return quotation(key); }), " (",
                        reason, ")"));
  }
  return lines;
}

}  // namespace trireme
