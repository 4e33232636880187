#include "trireme/train/checkpoint.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <system_error>
#include <vector>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/safetensors.h"
#include "trireme/base/safetensors_writer.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/finite_values.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/trainer_state.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

// The tensors of a checkpoint, spans of a unit's flat state: masters are split into parameters with Hugging
// Face's names and shapes; Adam's moments stay flat.
std::vector<ParameterSpec> stored_tensors(const UnitSpec& unit, const std::string& state) {
  if (state == "master") return unit.parameters;
  return {{unit.name + "/" + state, {unit.elements}, 0, unit.elements}};
}

// A checkpoint with a value that is not finite would pass its checksums and ruin every run that resumes.
void refuse_not_finite(const UnitSpec& unit, const std::string& state, const at::Tensor& flat) {
  if (state == "master") {
    if (const auto row = not_finite_row(unit, flat)) throw DataError(cat("the weight ", *row));
  } else if (const auto element = first_not_finite(flat)) {
    throw DataError(
        cat("the optimizer's ", state, " of unit ", unit.name, " is not finite at element ", *element));
  }
}

// Writes this rank's units (u % ranks), while all ranks put each unit together. Collective: a rank that
// cannot write still takes part to the end, and then throws.
void write_shard(const fs::path& file, Engine& engine) {
  const Group& group = *engine.mesh().all;
  const std::vector<UnitSpec>& units = engine.layout().units;
  const std::vector<std::string> states = engine.state_names();
  const auto is_this_ranks = [&](size_t unit) {
    return static_cast<int>(unit) % group.size() == group.rank();
  };
  std::unique_ptr<SafetensorsWriter> writer;
  std::exception_ptr failure;
  const auto attempt = [&](const auto& work) {
    if (failure) return;
    try {
      work();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  };
  // The other ranks wait in the exchange that this rank could not finish: it cannot tell them.
  const auto state_of = [&](int unit, const std::string& state) {
    try {
      return engine.unit_state(unit, state);
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      if (group.size() == 1) throw;
      throw CommError(
          cat("putting unit ", units[static_cast<size_t>(unit)].name, " together: ", error.what()));
    }
  };
  attempt([&] {
    std::vector<SafetensorsSpec> specs;
    for (size_t unit = 0; unit < units.size(); ++unit)
      if (is_this_ranks(unit))
        for (const std::string& state : states)
          for (const ParameterSpec& tensor : stored_tensors(units[unit], state))
            specs.push_back({tensor.name, "F32", tensor.shape});
    if (!specs.empty()) writer = std::make_unique<SafetensorsWriter>(file, std::move(specs));
  });
  for (size_t unit = 0; unit < units.size(); ++unit)
    for (const std::string& state : states) {
      const at::Tensor flat = state_of(static_cast<int>(unit), state);
      if (!is_this_ranks(unit)) continue;
      attempt([&] {
        const at::Tensor values = flat.to(at::kCPU).contiguous();
        refuse_not_finite(units[unit], state, values);
        const auto* data = values.const_data_ptr<float>();
        for (const ParameterSpec& tensor : stored_tensors(units[unit], state))
          writer->write(tensor.name, data + tensor.offset,
                        tensor.elements * static_cast<int64_t>(sizeof(float)));
      });
    }
  attempt([&] {
    if (writer) writer->finish();
  });
  if (failure) std::rethrow_exception(failure);
}

void write_weight_index(const fs::path& file, const ModelLayout& layout, int ranks) {
  Json map = Json::object();
  int64_t bytes = 0;
  for (size_t unit = 0; unit < layout.units.size(); ++unit)
    for (const ParameterSpec& spec : layout.units[unit].parameters) {
      map[spec.name] = shard_name(static_cast<int>(unit) % ranks);
      bytes += spec.elements * static_cast<int64_t>(sizeof(float));
    }
  write_durable(file, Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(1) + "\n");
}

// Each rank's file. Collective.
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

// The tensors of all files of a checkpoint.
class StoredTensors {
 public:
  explicit StoredTensors(const fs::path& dir) : dir_(dir) {
    for (const auto& [name, described] : read_manifest(dir).files)
      if (name.ends_with(".safetensors")) {
        files_.push_back(std::make_unique<SafetensorsFile>(dir / name));
        for (const auto& [tensor, entry] : files_.back()->entries()) entries_[tensor] = &entry;
        header_bytes_ += files_.back()->header_bytes();
      }
  }
  // DataError where it is missing or not as this model and optimizer have it.
  const SafetensorsEntry& find(const ParameterSpec& tensor) const {
    const auto found = entries_.find(tensor.name);
    if (found == entries_.end())
      throw DataError(cat(dir_.string(), ": the checkpoint has no tensor '", tensor.name,
                          "', which this model and optimizer need"));
    const SafetensorsEntry& entry = *found->second;
    if (entry.dtype != "F32" || entry.shape != tensor.shape)
      throw DataError(cat(entry.describe(), ": the model needs F32 ", at::IntArrayRef(tensor.shape)));
    return entry;
  }
  int64_t header_bytes() const { return header_bytes_; }

 private:
  fs::path dir_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsEntry*> entries_;
  int64_t header_bytes_ = 0;
};

// Reads a share of a unit's state to `values` [share.elements]; what belongs to no tensor stays as it is.
// Returns the bytes read.
int64_t read_share(const StoredTensors& stored, const UnitSpec& unit, const std::string& state,
                   const UnitShare& share, at::Tensor& values) {
  constexpr auto kWidth = static_cast<int64_t>(sizeof(float));
  int64_t read_bytes = 0;
  for (const ParameterSpec& tensor : stored_tensors(unit, state)) {
    const int64_t begin = std::max(tensor.offset, share.begin);
    const int64_t end = std::min(tensor.offset + tensor.elements, share.begin + share.elements);
    if (begin >= end) continue;
    stored.find(tensor).read((begin - tensor.offset) * kWidth,
                             values.mutable_data_ptr<float>() + (begin - share.begin),
                             (end - begin) * kWidth);
    read_bytes += (end - begin) * kWidth;
  }
  return read_bytes;
}

// An older version, which did not check before it saved, may have written the checkpoint.
void refuse_not_finite_share(const UnitSpec& unit, const std::string& state, const UnitShare& share,
                             const at::Tensor& values) {
  if (!first_not_finite(values)) return;
  const at::Tensor flat = at::zeros({unit.elements}, at::kFloat);
  flat.narrow(0, share.begin, share.elements).copy_(values);
  refuse_not_finite(unit, state, flat);
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

  ManifestFile shard;
  step([&] {
    write_shard(temporary / shard_name(rank), engine);
    // A rank without units (more ranks than units) has no file.
    if (is_there(temporary / shard_name(rank))) shard = describe_file(temporary / shard_name(rank));
  });
  const std::vector<ManifestFile> shards = gather_described(shard, agreement);

  step([&] {
    if (rank != 0) return;
    CheckpointManifest manifest;
    manifest.step = contents.step;
    manifest.ranks = ranks;
    for (int r = 0; r < ranks; ++r)
      if (const ManifestFile& described = shards[static_cast<size_t>(r)]; described.bytes > 0)
        manifest.files[shard_name(r)] = described;
    Json state = contents.trainer_state;
    const TrainingProgress progress = engine.progress();
    state["optimizer_steps"] = progress.optimizer_steps;
    if (progress.loss_scale > 0) {
      state["loss_scale"] = progress.loss_scale;
      state["loss_scale_clean_steps"] = progress.clean_steps;
    }
    write_durable(temporary / "trainer_state.json", state.dump(1) + "\n");
    write_durable(temporary / "config.json", engine.config().raw.dump(2) + "\n");
    write_weight_index(temporary / "model.safetensors.index.json", engine.layout(), ranks);
    std::vector<std::string> small{"trainer_state.json", "config.json", "model.safetensors.index.json"};
    for (const std::string& name : tokenizer_file_names()) {
      if (contents.tokenizer_from.empty() || !is_there(contents.tokenizer_from / name)) continue;
      copy_durable(contents.tokenizer_from / name, temporary / name);
      small.emplace_back(name);
    }
    for (const std::string& name : small) manifest.files[name] = describe_file(temporary / name);
    write_manifest(temporary, manifest);
    sync_folder(temporary);
    run.publish(contents.step);
    run.keep_newest(save_total_limit, contents.step);
  });
  return run.checkpoint(contents.step);
}

CheckpointRead read_checkpoint(const fs::path& dir, Engine& engine) {
  const at::NoGradGuard no_grad;
  Agreement agreement = engine.agreement();
  const std::vector<UnitSpec>& units = engine.layout().units;
  const std::vector<std::string> states = engine.state_names();
  CheckpointRead result;
  std::unique_ptr<StoredTensors> stored;
  agreement.all_or_none(cat("opening ", dir.string()), [&] {
    stored = std::make_unique<StoredTensors>(dir);
    for (const UnitSpec& unit : units)
      for (const std::string& state : states)
        for (const ParameterSpec& tensor : stored_tensors(unit, state)) stored->find(tensor);
    result.trainer_state = read_json(dir / "trainer_state.json");
  });
  result.bytes = stored->header_bytes();
  // Where ranks exchange shares, one that cannot read goes on taking part, and then throws.
  std::exception_ptr failure;
  for (size_t unit = 0; unit < units.size(); ++unit)
    for (const std::string& state : states) {
      const UnitShare share = engine.unit_share(static_cast<int>(unit));
      at::Tensor values = at::zeros({share.elements}, at::kFloat);
      try {
        if (!failure) {
          result.bytes += read_share(*stored, units[unit], state, share, values);
          refuse_not_finite_share(units[unit], state, share, values);
        }
      } catch (const DataError& error) {
        failure = std::make_exception_ptr(
            DataError(cat(dir.string(), ": ", error.what(), "; use an earlier checkpoint")));
      }
      engine.restore_unit_share(static_cast<int>(unit), state, values);
    }
  agreement.all_or_none(cat("reading ", dir.string()), [&] {
    if (failure) std::rethrow_exception(failure);
    const std::string origin = (dir / "trainer_state.json").string();
    const SavedProgress progress = parse_saved_progress(result.trainer_state, origin);
    engine.restore_progress({progress.optimizer_steps, progress.loss_scale, progress.loss_scale_clean_steps});
  });
  return result;
}

}  // namespace trireme
