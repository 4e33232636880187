// manifest.json of a checkpoint: the files that must be in the folder, byte for byte.
//
//   {"format": 2, "step": 40, "ranks": 2, "chunk_bytes": 67108864,
//    "files": {"rank-00000.safetensors": {"bytes": 90000000, "xxh3": ["9f...", "03..."]}, ...}}
//
// Files have a checksum of every chunk, so that ranks share the work of reading them, however many ranks
// wrote them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

constexpr int64_t kChunkBytes = int64_t{64} << 20;

struct ManifestFile {
  int64_t bytes = 0;
  std::vector<uint64_t> xxh3;  // of each chunk; the last one may be shorter
};

struct CheckpointManifest {
  int64_t step = 0;
  int ranks = 1;
  int64_t chunk_bytes = kChunkBytes;
  std::map<std::string, ManifestFile> files;  // by name within the folder
};

// The step of a folder such as ".../step-40"; nullopt for other folders, which may hold a copy.
std::optional<int64_t> step_of_folder(const std::filesystem::path& dir);

// The file name of a rank's shard.
std::string shard_name(int rank);

// Size and checksums of a file on disk.
ManifestFile describe_file(const std::filesystem::path& file, int64_t chunk_bytes = kChunkBytes);

// Writes DIR/manifest.json and syncs it. DataError when the disk refuses.
void write_manifest(const std::filesystem::path& dir, const CheckpointManifest& manifest);
// Throws DataError if there is no manifest (not a whole checkpoint), it is not JSON, or it breaks a rule:
// plain file names alone, the files that every checkpoint has, shards from rank-00000 on without a gap and
// within `ranks`, the folder's step.
CheckpointManifest read_manifest(const std::filesystem::path& dir);
// Throws DataError that names a file that may not be read. Missing permissions or an absent file server do
// not make a checkpoint broken.
void check_readable(const std::filesystem::path& dir);

// The chunks that one of several ranks reads: every `ranks`-th of all files' in the order of their names.
struct ChunkShare {
  int rank = 0;
  int ranks = 1;
};
// Checks the size of every file of the checkpoint, and the bytes of the share's chunks. The files that the
// weight index names must be among them. Returns how many bytes it read of the share's chunks. Throws
// DataError that names the first file that differs.
int64_t verify_checkpoint(const std::filesystem::path& dir, const ChunkShare& share = {});

}  // namespace trireme
