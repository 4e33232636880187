// manifest.json of a checkpoint: what must be in the folder, byte for byte.
//
//   {"format": 1, "step": 40, "ranks": 2, "files": {"rank-00000.safetensors": {"bytes": 1234, "xxh3":
//   "9f..."}, ...}}
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
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

// No run is longer: counts of steps and of tokens stay exact, in JSON's readers too.
constexpr int64_t kLargestStep = int64_t{1} << 53;
constexpr int64_t kMostRanks = 100'000;

// Of ".../step-40": 40; nothing of other folders, which may hold a copy.
std::optional<int64_t> step_of_folder(const std::filesystem::path& dir);

// Of the file that a rank writes.
std::string shard_name(int rank);

// Size and checksum of a file as it lies on disk.
ManifestFile describe_file(const std::filesystem::path& file);

// Writes DIR/manifest.json and syncs it. DataError when the disk refuses.
void write_manifest(const std::filesystem::path& dir, const CheckpointManifest& manifest);
// Throws DataError: no manifest (not a whole checkpoint), not JSON, or not of this form: plain file names alone, the files that
// every checkpoint has, shards rank-00000 and on without a gap and within `ranks`, a step that is the folder's.
CheckpointManifest read_manifest(const std::filesystem::path& dir);
// Permissions and a file server that is away say nothing about a checkpoint: DataError that names the file that may not be read.
void check_readable(const std::filesystem::path& dir);

// The files that one of several ranks reads: every `ranks`-th by name.
struct FileShare {
  int rank = 0;
  int ranks = 1;
};
// Compares the size of every file of the checkpoint, and the bytes of those of the share; what the weight index names must be
// among them. Throws DataError that names the first file that differs.
CheckpointManifest verify_checkpoint(const std::filesystem::path& dir, const FileShare& share = {});

}  // namespace trireme
