// One rank's file of a checkpoint, rank-0000r.safetensors: the units that rank r writes
// (model/unit_writer.h), of each the fp32 masters under Hugging Face's names and shapes, and the optimizer's
// moments as flat tensors.
//
//   units of this rank, states in order -> write, write, ... -> finish -> size and checksums
#pragma once

#include <filesystem>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/safetensors_writer.h"
#include "trireme/model/model_layout.h"
#include "trireme/train/checkpoint_manifest.h"

namespace trireme {

// The tensors of a unit's flat state in a checkpoint's files.
std::vector<ParameterSpec> stored_tensors(const UnitSpec& unit, const std::string& state);

// A checkpoint with a value that is not finite would pass its checksums and ruin every run that resumes.
// Throws DataError that names the tensor.
void refuse_not_finite(const UnitSpec& unit, const std::string& state, const at::Tensor& flat);

class CheckpointShard {
 public:
  // Opens the file and reserves its size; without units (more ranks than units) there is none. DataError as
  // of SafetensorsWriter.
  CheckpointShard(std::filesystem::path file, const std::vector<UnitSpec>& units,
                  const std::vector<std::string>& states, int rank, int ranks);
  // The next state of the next unit: `flat` [elements] fp32 on the CPU. False if `stop` came meanwhile: then
  // the file cannot be finished. Throws DataError for a value that is not finite, or a disk that refuses.
  bool write(const UnitSpec& unit, const std::string& state, const at::Tensor& flat,
             const std::stop_token& stop = {});
  // Syncs the file and gives it its name. Of no file: 0 bytes.
  ManifestFile finish();

 private:
  std::filesystem::path file_;
  std::unique_ptr<SafetensorsWriter> writer_;  // null: no units
};

}  // namespace trireme
