#include "trireme/train/checkpoint_shard.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/finite_values.h"
#include "trireme/model/unit_writer.h"

namespace trireme {

std::vector<ParameterSpec> stored_tensors(const UnitSpec& unit, const std::string& state) {
  if (state == "master") return unit.parameters;
  return {{unit.name + "/" + state, {unit.elements}, 0, unit.elements}};
}

void refuse_not_finite(const UnitSpec& unit, const std::string& state, const at::Tensor& flat) {
  if (state == "master") {
    if (const auto row = not_finite_row(unit, flat)) throw DataError(cat("the weight ", *row));
  } else if (const auto element = first_not_finite(flat)) {
    throw DataError(
        cat("the optimizer's ", state, " of unit ", unit.name, " is not finite at element ", *element));
  }
}

CheckpointShard::CheckpointShard(std::filesystem::path file, const std::vector<UnitSpec>& units,
                                 const std::vector<std::string>& states, int rank, int ranks)
    : file_(std::move(file)) {
  std::vector<SafetensorsSpec> specs;
  bool writes_units = false;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    if (writer_of_unit(unit, ranks) != rank) continue;
    writes_units = true;
    for (const std::string& state : states)
      for (const ParameterSpec& tensor : stored_tensors(units[static_cast<size_t>(unit)], state))
        specs.push_back({tensor.name, "F32", tensor.shape});
  }
  // Also of units without a tensor, as layers without adapters: only a rank that writes no unit has no shard.
  if (writes_units) writer_ = std::make_unique<SafetensorsWriter>(file_, std::move(specs));
}

bool CheckpointShard::write(const UnitSpec& unit, const std::string& state, const at::Tensor& flat,
                            const std::stop_token& stop) {
  // Short enough that libtorch looks through it on this thread alone: another one may be training.
  constexpr int64_t kPieceElements = int64_t{1} << 18;
  for (const ParameterSpec& tensor : stored_tensors(unit, state))
    for (int64_t done = 0; done < tensor.elements; done += kPieceElements) {
      if (stop.stop_requested()) return false;
      const int64_t count = std::min(kPieceElements, tensor.elements - done);
      const at::Tensor piece = flat.narrow(0, tensor.offset + done, count);
      if (first_not_finite(piece)) refuse_not_finite(unit, state, flat);
      writer_->write(tensor.name, piece.const_data_ptr<float>(), count * static_cast<int64_t>(sizeof(float)));
    }
  return true;
}

ManifestFile CheckpointShard::finish() {
  if (!writer_) return {};
  writer_->finish();
  return describe_file(file_);
}

}  // namespace trireme
