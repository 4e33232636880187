#include "trireme/train/checkpoint.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/finite_values.h"
#include "trireme/model/unit_writer.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/checkpoint_shard.h"
#include "trireme/train/publish_checkpoint.h"
#include "trireme/train/trainer_state.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

struct WrittenShard {
  ManifestFile file;
  std::exception_ptr failure;  // why this rank could not write it; null: it did
};

// Writes this rank's units, while all ranks put each unit together. Collective: a rank that cannot write
// still takes part to the end. Throws what for_each_state throws.
WrittenShard write_shard(const fs::path& file, Engine& engine) {
  const Group& group = *engine.mesh().all;
  const std::vector<UnitSpec>& units = engine.layout().trained();
  std::unique_ptr<CheckpointShard> shard;
  WrittenShard written;
  const auto attempt = [&](const auto& work) {
    if (written.failure) return;
    try {
      work();
    } catch (const std::exception&) {
      written.failure = std::current_exception();
    }
  };
  attempt([&] {
    shard = std::make_unique<CheckpointShard>(file, units, engine.state_names(), group.rank(), group.size());
  });
  for_each_state(engine, [&](const UnitSpec& unit, const std::string& state, const at::Tensor& flat) {
    attempt([&] { shard->write(unit, state, engine.read_back(flat).contiguous()); });
  });
  attempt([&] { written.file = shard->finish(); });
  return written;
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
  // The tensors in which a unit's state lies: as checkpoint_shard.h writes it, or moments parameter by
  // parameter, as tools/from_transformers.py does.
  std::vector<ParameterSpec> tensors_of(const UnitSpec& unit, const std::string& state) const {
    std::vector<ParameterSpec> parts = stored_tensors(unit, state);
    if (state == "master" || entries_.contains(parts.front().name)) return parts;
    std::vector<ParameterSpec> by_parameter = unit.parameters;
    for (ParameterSpec& parameter : by_parameter) parameter.name += "/" + state;
    return entries_.contains(by_parameter.front().name) ? by_parameter : parts;
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
  for (const ParameterSpec& tensor : stored.tensors_of(unit, state)) {
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

// Another program may have written the checkpoint, or a disk return other bytes than those that were compared.
void refuse_not_finite_share(const UnitSpec& unit, const std::string& state, const UnitShare& share,
                             const at::Tensor& values) {
  if (!first_not_finite(values)) return;
  const at::Tensor flat = at::zeros({std::max(unit.elements, share.begin + share.elements)}, at::kFloat);
  flat.narrow(0, share.begin, share.elements).copy_(values);
  refuse_not_finite(unit, state, flat);
}

}  // namespace

void for_each_state(Engine& engine,
                    const std::function<void(const UnitSpec&, const std::string&, const at::Tensor&)>& take) {
  const Group& group = *engine.mesh().all;
  const std::vector<UnitSpec>& units = engine.layout().trained();
  const auto all = static_cast<int>(units.size());
  // As many units at once as there are ranks, so that all of them copy and write together.
  for (int first = 0; first < all; first += group.size())
    for (const std::string& state : engine.state_names()) {
      std::vector<std::pair<int, at::Tensor>> to_write;
      for (int unit = first; unit < std::min(all, first + group.size()); ++unit) {
        at::Tensor flat = engine.unit_state(unit, state);
        if (writer_of_unit(unit, group.size()) == group.rank()) to_write.emplace_back(unit, std::move(flat));
      }
      for (const auto& [unit, flat] : to_write) take(units[static_cast<size_t>(unit)], state, flat);
    }
}

fs::path save_checkpoint(const RunDirectory& run, const CheckpointContents& contents, Engine& engine,
                         Agreement& agreement, int64_t save_total_limit) {
  const at::NoGradGuard no_grad;
  const int rank = engine.mesh().all->rank(), ranks = engine.mesh().all->size();
  const auto part = [&](const std::function<void()>& work) {
    save_part(run, contents.step, agreement, rank == 0, work);
  };
  part([&] {
    if (rank == 0) begin_checkpoint(run, contents.step);
  });
  // Not in an agreement: while units are put together the other ranks wait in an exchange, so that a rank that
  // fails there can tell them nothing, and ends by its own error.
  const WrittenShard shard = write_shard(run.temporary(contents.step) / shard_name(rank), engine);
  part([&] {
    if (shard.failure) std::rethrow_exception(shard.failure);
  });
  const std::vector<ManifestFile> shards = gather_described(shard.file, agreement);
  part([&] {
    if (rank == 0)
      publish_checkpoint(run, checkpoint_texts(contents, engine, ranks, save_total_limit), shards);
  });
  return run.checkpoint(contents.step);
}

CheckpointRead read_checkpoint(const fs::path& dir, Engine& engine) {
  const at::NoGradGuard no_grad;
  Agreement agreement = engine.agreement();
  const std::vector<UnitSpec>& units = engine.layout().trained();
  const std::vector<std::string> states = engine.state_names();
  CheckpointRead result;
  std::unique_ptr<StoredTensors> stored;
  agreement.all_or_none(cat("opening ", dir.string()), [&] {
    stored = std::make_unique<StoredTensors>(dir);
    for (const UnitSpec& unit : units)
      for (const std::string& state : states)
        for (const ParameterSpec& tensor : stored->tensors_of(unit, state)) stored->find(tensor);
    result.trainer_state = read_json(dir / kTrainerStateFile);
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
      } catch (const SystemFault&) {
        failure = std::current_exception();
      }
      engine.restore_unit_share(static_cast<int>(unit), state, values);
    }
  agreement.all_or_none(cat("reading ", dir.string()), [&] {
    if (failure) std::rethrow_exception(failure);
    const std::string origin = (dir / kTrainerStateFile).string();
    engine.restore_progress(parse_saved_progress(result.trainer_state, origin));
  });
  return result;
}

}  // namespace trireme
