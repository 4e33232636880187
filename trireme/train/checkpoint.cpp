#include "trireme/train/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <system_error>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/base/safetensors_writer.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/durable_file.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

std::string shard_name(int rank) {
  char text[32];
  std::snprintf(text, sizeof(text), "rank-%05d.safetensors", rank);
  return text;
}

// One tensor of a shard, and the part of the engine's state that it is. Masters are cut into parameters,
// whose names and shapes are Hugging Face's; moments stay flat.
struct StoredTensor {
  std::string name;
  at::Tensor values;
  int unit = 0;
  bool weight = false;
};

std::vector<StoredTensor> stored_tensors(Engine& engine) {
  std::vector<StoredTensor> all;
  for (const StateTensor& state : engine.state()) {
    TRIREME_ASSERT(state.values.scalar_type() == at::kFloat, state.name);
    if (!state.name.ends_with("/master")) {
      all.push_back({state.name, state.values, state.unit, false});
      continue;
    }
    for (const ParameterSpec& spec : engine.layout().units.at(static_cast<size_t>(state.unit)).parameters)
      all.push_back({spec.name, parameter_view(state.values, spec), state.unit, true});
  }
  return all;
}

void write_shard(const fs::path& file, const std::vector<StoredTensor>& tensors) {
  std::vector<SafetensorsSpec> specs;
  specs.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors)
    specs.push_back({tensor.name, "F32", tensor.values.sizes().vec()});
  SafetensorsWriter writer(file, std::move(specs));
  for (const StoredTensor& tensor : tensors) {
    const at::Tensor values = tensor.values.to(at::kCPU).contiguous();
    writer.write(tensor.name, values.const_data_ptr(), static_cast<int64_t>(values.nbytes()));
  }
  writer.finish();
}

void write_weight_index(const fs::path& file, const std::vector<StoredTensor>& all, int ranks) {
  Json map = Json::object();
  int64_t bytes = 0;
  for (const StoredTensor& tensor : all) {
    if (!tensor.weight) continue;
    map[tensor.name] = shard_name(tensor.unit % ranks);
    bytes += static_cast<int64_t>(tensor.values.nbytes());
  }
  write_durable(file, Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(1) + "\n");
}

// The name appears at once; a checkpoint of the same step that was there (a broken one, else there is no
// reason to save again) makes way first.
void publish(const fs::path& temporary, const fs::path& final_name) {
  std::error_code error;
  if (fs::exists(final_name, error)) {
    fs::path doomed = final_name;
    doomed += ".tmp-replaced";
    fs::remove_all(doomed, error);
    fs::rename(final_name, doomed, error);
    fs::remove_all(doomed, error);
  }
  fs::rename(temporary, final_name, error);
  if (error)
    throw DataError(
        cat(temporary.string(), ": cannot rename to ", final_name.string(), ": ", error.message()));
  sync_folder(final_name.parent_path());
}

void read_tensor(const SafetensorsEntry& entry, at::Tensor values) {
  if (entry.dtype != "F32" || entry.shape != values.sizes().vec()) {
    std::string expected;
    for (const int64_t extent : values.sizes()) expected += cat(expected.empty() ? "" : ", ", extent);
    throw DataError(cat(entry.describe(), ": the model needs F32 [", expected, "]"));
  }
  at::Tensor copy = at::empty(values.sizes(), at::kFloat);
  if (entry.bytes > 0) std::memcpy(copy.mutable_data_ptr(), entry.data, static_cast<size_t>(entry.bytes));
  values.copy_(copy);
}

}  // namespace

fs::path save_checkpoint(const RunDirectory& run, const CheckpointContents& contents, Engine& engine,
                         Agreement& agreement, int64_t save_total_limit) {
  const at::NoGradGuard no_grad;
  const Group& group = *engine.mesh().all;
  const int rank = group.rank(), ranks = group.size();
  const fs::path temporary = run.temporary(contents.step);
  const std::string doing = cat("saving the checkpoint of step ", contents.step);
  const auto step = [&](const std::function<void()>& work) {
    try {
      agreement.all_or_none(doing, work);
    } catch (const CommError&) {
      throw;
    } catch (const Error&) {
      if (rank == 0) run.remove_stale();
      throw;
    }
  };

  step([&] {
    if (rank != 0) return;
    run.remove_stale();
    std::error_code error;
    fs::create_directories(temporary, error);
    if (error) throw DataError(cat(temporary.string(), ": cannot make the folder: ", error.message()));
  });

  const std::vector<StoredTensor> all = stored_tensors(engine);
  std::vector<StoredTensor> mine;
  std::copy_if(all.begin(), all.end(), std::back_inserter(mine),
               [&](const StoredTensor& tensor) { return tensor.unit % ranks == rank; });
  ManifestFile shard;
  step([&] {
    if (mine.empty()) return;  // more ranks than units
    write_shard(temporary / shard_name(rank), mine);
    shard = describe_file(temporary / shard_name(rank));
  });
  const auto shards = agreement.gather({shard.bytes, static_cast<int64_t>(shard.xxh3)});

  step([&] {
    if (rank != 0) return;
    CheckpointManifest manifest{contents.step, ranks, {}};
    for (int r = 0; r < ranks; ++r) {
      const auto& described = shards[static_cast<size_t>(r)];
      if (described[0] > 0)
        manifest.files[shard_name(r)] = {described[0], static_cast<uint64_t>(described[1])};
    }
    Json state = contents.trainer_state;
    state["optimizer_steps"] = engine.optimizer_steps();
    write_durable(temporary / "trainer_state.json", state.dump(1) + "\n");
    write_durable(temporary / "config.json", engine.config().raw.dump(2) + "\n");
    write_weight_index(temporary / "model.safetensors.index.json", all, ranks);
    std::vector<std::string> small{"trainer_state.json", "config.json", "model.safetensors.index.json"};
    for (const std::string& name : tokenizer_file_names()) {
      std::error_code ignored;
      if (contents.tokenizer_from.empty() || !fs::exists(contents.tokenizer_from / name, ignored)) continue;
      copy_durable(contents.tokenizer_from / name, temporary / name);
      small.emplace_back(name);
    }
    for (const std::string& name : small) manifest.files[name] = describe_file(temporary / name);
    write_manifest(temporary, manifest);
    sync_folder(temporary);
    publish(temporary, run.checkpoint(contents.step));
    run.keep_newest(save_total_limit);
  });
  return run.checkpoint(contents.step);
}

Json read_checkpoint(const fs::path& dir, Engine& engine, bool verified) {
  const at::NoGradGuard no_grad;
  const CheckpointManifest manifest = verified ? read_manifest(dir) : verify_checkpoint(dir);
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  for (const auto& [name, described] : manifest.files)
    if (name.ends_with(".safetensors")) files.push_back(std::make_unique<SafetensorsFile>(dir / name));
  for (const StoredTensor& tensor : stored_tensors(engine)) {
    const SafetensorsEntry* entry = nullptr;
    for (const auto& file : files)
      if (entry == nullptr) entry = file->find(tensor.name);
    if (entry == nullptr)
      throw DataError(cat(dir.string(), ": the checkpoint has no tensor '", tensor.name,
                          "', which this model and optimizer need"));
    read_tensor(*entry, tensor.values);
  }
  Json state = read_json(dir / "trainer_state.json");
  if (!state.contains("optimizer_steps") || !state["optimizer_steps"].is_number_integer())
    throw DataError(cat((dir / "trainer_state.json").string(), ": no \"optimizer_steps\""));
  engine.state_restored(state["optimizer_steps"].get<int64_t>());
  return state;
}

}  // namespace trireme
