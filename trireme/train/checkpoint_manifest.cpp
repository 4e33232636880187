#include "trireme/train/checkpoint_manifest.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <system_error>
#include <unistd.h>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/input_file.h"
#include "trireme/base/json.h"
#include "trireme/train/file_checksum.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr int kFormat = 1;
constexpr const char* kManifest = "manifest.json";
constexpr const char* kWeightIndex = "model.safetensors.index.json";

// A shard's rank by its file name; nullopt for other files. A name that only looks like a shard's gives -1:
// it belongs to no checkpoint.
std::optional<int64_t> rank_of_shard(const std::string& name) {
  if (!name.ends_with(".safetensors")) return std::nullopt;
  int64_t rank = -1;
  if (name.starts_with("rank-")) std::from_chars(name.data() + 5, name.data() + name.size(), rank);
  return shard_name(static_cast<int>(rank)) == name ? rank : -1;
}

// Unit u is in the shard of rank u % ranks. So with fewer units than ranks only the last shards are missing.
void check_shards(const CheckpointManifest& manifest, const std::string& origin) {
  int64_t shards = 0;
  for (const auto& [name, file] : manifest.files)
    if (const auto rank = rank_of_shard(name)) {
      if (*rank != shards++)
        throw DataError(cat(origin, ": \"files\" has \"", quotation(name), "\", expected \"",
                            shard_name(static_cast<int>(shards - 1)), "\" next: a shard is missing"));
    }
  if (shards < 1 || shards > manifest.ranks)
    throw DataError(
        cat(origin, ": \"files\" has ", shards, " shards; expected 1 to \"ranks\", ", manifest.ranks));
}

void check_weight_index(const fs::path& index, const CheckpointManifest& manifest) {
  const Json named = read_json(index);
  for (const auto& [tensor, shard] : object_value(named, "weight_map", index.string()).items())
    if (!shard.is_string() || !manifest.files.contains(shard.get<std::string>()))
      throw DataError(cat(index.string(), ": tensor '", quotation(tensor), "' is in ", quotation(shard),
                          ", which the checkpoint's manifest does not list"));
}

}  // namespace

std::optional<int64_t> step_of_folder(const fs::path& dir) {
  const std::string name = (dir.has_filename() ? dir : dir.parent_path()).filename().string();
  int64_t step = 0;
  if (!name.starts_with("step-")) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

std::string shard_name(int rank) {
  char text[32];
  std::snprintf(text, sizeof(text), "rank-%05d.safetensors", rank);
  return text;
}

ManifestFile describe_file(const fs::path& file) {
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  if (error) throw DataError(cat(file.string(), ": ", error.message()));
  return {static_cast<int64_t>(bytes), file_checksum(file)};
}

void write_manifest(const fs::path& dir, const CheckpointManifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files)
    files[name] = {{"bytes", file.bytes}, {"xxh3", checksum_text(file.xxh3)}};
  const Json json = {
      {"format", kFormat}, {"step", manifest.step}, {"ranks", manifest.ranks}, {"files", files}};
  write_durable(dir / kManifest, json.dump(1) + "\n");
}

CheckpointManifest read_manifest(const fs::path& dir) {
  const fs::path file = dir / kManifest;
  std::error_code error;
  if (!fs::exists(file, error) && !error)
    throw DataError(
        cat(dir.string(), ": there is no manifest.json: this is not a whole checkpoint of Trireme"));
  const Json json = read_json(file);
  const std::string origin = file.string();
  if (const int64_t format = whole_number(json, "format", {}, origin); format != kFormat)
    throw DataError(cat(origin, ": format ", format, "; this version reads ", kFormat));
  CheckpointManifest manifest;
  manifest.step = whole_number(json, "step", {0, kLargestStep}, origin);
  manifest.ranks = static_cast<int>(whole_number(json, "ranks", {1, kMostRanks}, origin));
  if (const auto named = step_of_folder(dir); named && *named != manifest.step)
    throw DataError(
        cat(origin, ": \"step\" is ", manifest.step, ", but the folder is that of step ", *named));
  for (const auto& [name, entry] : object_value(json, "files", origin).items()) {
    if (!is_plain_file_name(name) || name == kManifest)
      throw DataError(
          cat(origin, ": \"files\" has \"", quotation(name), "\"; expected names of files in this folder"));
    const std::string file_origin = cat(origin, ": ", quotation(name));
    manifest.files[name] = {whole_number(entry, "bytes", {}, file_origin),
                            parse_checksum(text_value(entry, "xxh3", file_origin), file_origin)};
  }
  for (const char* needed : {"config.json", kWeightIndex, "trainer_state.json"})
    if (!manifest.files.contains(needed))
      throw DataError(cat(origin, ": \"files\" lacks ", needed, ", which every checkpoint has"));
  check_shards(manifest, origin);
  return manifest;
}

void check_readable(const fs::path& dir) {
  for (const fs::path& file : entries_of(dir))
    if (::access(file.c_str(), R_OK) != 0 && errno != ENOENT)
      throw DataError(cat(file.string(), ": cannot be read: ", std::strerror(errno)));
}

CheckpointManifest verify_checkpoint(const fs::path& dir, const FileShare& share) {
  CheckpointManifest manifest = read_manifest(dir);
  int number = 0;
  for (const auto& [name, expected] : manifest.files) {
    const fs::path file = dir / name;
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    if (error)
      throw DataError(cat(file.string(), ": ", error.message(), "; the checkpoint's manifest lists it"));
    if (static_cast<int64_t>(bytes) != expected.bytes)
      throw DataError(
          cat(file.string(), ": ", bytes, " bytes; the checkpoint's manifest says ", expected.bytes));
    if (number++ % share.ranks != share.rank) continue;
    const uint64_t checksum = file_checksum(file);
    if (checksum != expected.xxh3)
      throw DataError(cat(file.string(), ": its bytes have checksum ", checksum_text(checksum),
                          "; the checkpoint's manifest says ", checksum_text(expected.xxh3),
                          ": the file was changed or damaged; use another checkpoint"));
    if (name == kWeightIndex) check_weight_index(file, manifest);
  }
  return manifest;
}

}  // namespace trireme
