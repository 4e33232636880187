// manifest.json of a checkpoint: what must be in the folder, byte for byte.
//
//   {"format": 1, "step": 40, "ranks": 2, "files": {"rank-00000.safetensors": {"bytes": 1234, "xxh3":
//   "9f..."}, ...}}
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace trireme {

struct ManifestFile {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};

struct CheckpointManifest {
  int64_t step = 0;
  int ranks = 1;
  std::map<std::string, ManifestFile> files;  // by name within the folder
};

// Size and checksum of a file as it lies on disk.
ManifestFile describe_file(const std::filesystem::path& file);

// Writes DIR/manifest.json and syncs it. DataError when the disk refuses.
void write_manifest(const std::filesystem::path& dir, const CheckpointManifest& manifest);
// Throws DataError: no manifest (not a whole checkpoint), not JSON, or not of this form.
CheckpointManifest read_manifest(const std::filesystem::path& dir);
// Reads every file of the checkpoint and compares. Throws DataError that names the first file that differs.
CheckpointManifest verify_checkpoint(const std::filesystem::path& dir);

}  // namespace trireme
