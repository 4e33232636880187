#include "trireme/train/compare_ranks.h"

#include "trireme/base/error.h"
#include "trireme/base/field_differences.h"
#include "trireme/base/machine_identity.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/computed_fields.h"
#include "trireme/model/lora_files.h"
#include "trireme/train/base_weights.h"

namespace trireme {
namespace {

Json options_of_run(const TrainOptions& options) {
  const OptionList list = list_of_copy(options, list_train_options);
  Json told = Json::object();
  for (const Option& option : list.options())
    if (option.in_config && !option.machine_alone && option.type != OptionType::path)
      told[option.name] = option.read();
  told["device"] = options.engine.device.is_cpu() ? "cpu" : "gpu";
  return told;
}

// Throws on all ranks alike where a rank's facts differ from those of rank 0.
void compare(const std::string& what, const Json& facts, int rank, Agreement& agreement) {
  const Json first = parse_json(agreement.first_text(rank == 0 ? facts.dump() : ""), "the facts of rank 0");
  std::string differences;
  for (const auto& [name, of_first, of_rank] : field_differences(first, facts))
    differences += cat("\n  ", name, " is ", quotation(of_first), " on rank 0 and ", quotation(of_rank),
                       " on rank ", rank);
  const int64_t ranks = agreement.sum(int64_t{differences.empty() ? 0 : 1});
  if (ranks == 0) return;
  if (!differences.empty()) differences += cat(" (on ", host_name(), ")");
  const std::string named = agreement.first_text(differences);
  throw ConfigError(cat("the ranks of this run differ in ", what, ":", named,
                        ranks > 1 ? cat("\nand ", ranks - 1, " more of the ranks differ from rank 0") : "",
                        "\nGive every rank the same; `trireme launch` starts all of them with one command"));
}

}  // namespace

void compare_ranks(const TrainOptions& options, int rank, Agreement& agreement) {
  compare("their options", options_of_run(options), rank, agreement);
  LoraOptions lora = options.engine.lora;
  // A resumed run needs its folder no more.
  const bool gone = agreement.any(!lora.adapter.empty() && !is_adapter_folder(lora.adapter));
  if (gone && resume_kind(options) != ResumeKind::none) lora = {};
  compare_models(options.model_dir, lora, rank, agreement);
}

ModelConfig compare_models(const std::filesystem::path& model_dir, const LoraOptions& lora, int rank,
                           Agreement& agreement) {
  ModelConfig config;
  Json weights, adapter = Json::object();
  agreement.all_or_none(cat("reading the model ", model_dir.string()), [&] {
    config = read_model_config(model_dir);
    weights = describe_weights(model_dir);
  });
  compare("config.json of their model", computed_fields(config), rank, agreement);
  compare("the weights of their model", weights, rank, agreement);
  // On ranks without an adapter too: one may have been told of one alone.
  agreement.all_or_none("reading what --adapter names", [&] {
    const std::string of_run = lora_of_run(config, lora);
    if (!lora.adapter.empty()) adapter = describe_weights(lora.adapter, kAdapterWeightsFile);
    adapter["LoRA"] = of_run;
  });
  compare("their adapter", adapter, rank, agreement);
  return config;
}

}  // namespace trireme
