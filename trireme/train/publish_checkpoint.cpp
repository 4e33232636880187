#include "trireme/train/publish_checkpoint.h"

#include <set>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/make_folder.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/lora_files.h"
#include "trireme/model/tokenizer_files.h"
#include "trireme/model/tokenizer_length.h"
#include "trireme/model/unit_writer.h"
#include "trireme/train/checkpoint_names.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

std::string weight_index(const std::vector<UnitSpec>& units, int ranks) {
  Json map = Json::object();
  int64_t bytes = 0;
  for (size_t unit = 0; unit < units.size(); ++unit)
    for (const ParameterSpec& spec : units[unit].parameters) {
      map[spec.name] = shard_name(writer_of_unit(static_cast<int>(unit), ranks));
      bytes += spec.elements * static_cast<int64_t>(sizeof(float));
    }
  return Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(1) + "\n";
}

}  // namespace

CheckpointTexts checkpoint_texts(const CheckpointContents& contents, const Engine& engine, int ranks,
                                 int64_t save_total_limit) {
  Json state = contents.trainer_state;
  const TrainingProgress progress = engine.progress();
  state["optimizer_steps"] = progress.optimizer_steps;
  if (progress.loss_scale > 0) {
    state["loss_scale"] = progress.loss_scale;
    state["loss_scale_clean_steps"] = progress.clean_steps;
  }
  std::map<std::string, std::string> texts{
      {kTrainerStateFile, state.dump(1) + "\n"},
      {"config.json", engine.config().raw.dump(2) + "\n"},
      {kWeightIndexFile, weight_index(engine.layout().trained(), ranks)}};
  texts.insert(contents.chat_files.begin(), contents.chat_files.end());
  if (const ModelLayout& layout = engine.layout(); layout.adapted())
    texts[kAdapterConfigFile] = adapter_config(engine.lora(), layout, name_of_base_model(contents.model_dir),
                                               engine.config().whole_type)
                                    .dump(2) +
                                "\n";
  return {contents.step, ranks, std::move(texts), contents.model_dir, save_total_limit, contents.best_step};
}

void begin_checkpoint(const RunDirectory& run, int64_t step) {
  run.remove_stale();
  make_folder(run.temporary(step));
}

std::vector<ManifestFile> gather_described(const ManifestFile& file, Agreement& agreement) {
  std::vector<int64_t> numbers{file.bytes, static_cast<int64_t>(file.xxh3.size())};
  for (const uint64_t checksum : file.xxh3) numbers.push_back(static_cast<int64_t>(checksum));
  numbers.resize(static_cast<size_t>(agreement.largest(static_cast<int64_t>(numbers.size()))));
  std::vector<ManifestFile> files;
  for (const std::vector<int64_t>& of_rank : agreement.gather(numbers)) {
    files.push_back({of_rank[0], {}});
    for (int64_t i = 0; i < of_rank[1]; ++i)
      files.back().xxh3.push_back(static_cast<uint64_t>(of_rank[static_cast<size_t>(2 + i)]));
  }
  return files;
}

void publish_checkpoint(const RunDirectory& run, const CheckpointTexts& contents,
                        const std::vector<ManifestFile>& shards) {
  const fs::path temporary = run.temporary(contents.step);
  CheckpointManifest manifest;
  manifest.step = contents.step;
  manifest.ranks = contents.ranks;
  for (size_t rank = 0; rank < shards.size(); ++rank)
    if (shards[rank].bytes > 0) manifest.files[shard_name(static_cast<int>(rank))] = shards[rank];
  const std::vector<std::string> of_model = copy_tokenizer(contents.tokenizer_from, temporary);
  std::set<std::string> names(of_model.begin(), of_model.end());
  for (const auto& [name, text] : contents.texts) {  // some in place of the model's
    write_durable(temporary / name, text);
    names.insert(name);
  }
  lengthen_tokenizer(contents.tokenizer_from, temporary);
  for (const std::string& name : names) manifest.files[name] = describe_file(temporary / name);
  write_manifest(temporary, manifest);
  sync_folder(temporary);
  run.publish(contents.step);
  run.keep_newest(contents.save_total_limit, contents.step, contents.best_step);
}

void save_part(const RunDirectory& run, int64_t step, Agreement& agreement, bool is_rank_0,
               const std::function<void()>& work) {
  try {
    agreement.all_or_none(cat("saving the checkpoint of step ", step), work);
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {
    if (is_rank_0) run.remove_stale();
    throw;
  }
}

}  // namespace trireme
