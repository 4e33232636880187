#include "trireme/train/checkpoint_manifest.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <system_error>
#include <unistd.h>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/file_error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/input_file.h"
#include "trireme/base/json.h"
#include "trireme/base/option_list.h"
#include "trireme/base/parse_whole.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/tokenizer_files.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/checksum.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr int kFormat = 2;

// A shard's rank by its file name; nullopt for other files. A name that only looks like a shard's gives -1:
// it belongs to no checkpoint.
std::optional<int64_t> rank_of_shard(const std::string& name) {
  if (!name.ends_with(".safetensors")) return std::nullopt;
  int64_t rank = -1;
  if (name.starts_with("rank-")) std::from_chars(name.data() + 5, name.data() + name.size(), rank);
  return shard_name(static_cast<int>(rank)) == name ? rank : -1;
}

// Ranks write units in turn. So with fewer units than ranks only the last shards are missing.
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

// An empty file has one chunk, too.
int64_t chunks_of(int64_t bytes, int64_t chunk_bytes) {
  return bytes == 0 ? 1 : (bytes - 1) / chunk_bytes + 1;
}

std::vector<uint64_t> parse_checksums(const Json& entry, int64_t bytes, int64_t chunk_bytes,
                                      const std::string& origin) {
  std::vector<uint64_t> checksums;
  for (const Json& text : array_value(entry, "xxh3", origin))
    checksums.push_back(parse_checksum(text.is_string() ? text.get<std::string>() : text.dump(), origin));
  if (static_cast<int64_t>(checksums.size()) != chunks_of(bytes, chunk_bytes))
    throw DataError(cat(origin, ": \"xxh3\" has ", checksums.size(), " checksums; expected ",
                        chunks_of(bytes, chunk_bytes), ", of ", bytes, " bytes in chunks of ", chunk_bytes));
  return checksums;
}

void check_weight_index(const fs::path& index, const CheckpointManifest& manifest) {
  const Json named = read_json(index, {.refuse_equal_keys = true});
  for (const auto& [tensor, shard] : object_value(named, "weight_map", index.string()).items())
    if (!shard.is_string() || !manifest.files.contains(shard.get<std::string>()))
      throw DataError(cat(index.string(), ": tensor '", quotation(tensor), "' is in ", quotation(shard),
                          ", which the checkpoint's manifest does not list"));
}

}  // namespace

std::optional<int64_t> step_of_folder(const fs::path& dir) {
  const std::string name = (dir.has_filename() ? dir : dir.parent_path()).filename().string();
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const auto step = parse_whole<int64_t>(name.substr(std::strlen(kStepPrefix)));
  return step && *step >= 0 ? step : std::nullopt;
}

std::string shard_name(int rank) {
  char text[32];
  std::snprintf(text, sizeof(text), "rank-%05d.safetensors", rank);
  return text;
}

ManifestFile describe_file(const fs::path& file, int64_t chunk_bytes) {
  const InputFile in(file);
  ManifestFile described{in.bytes(), {}};
  for (int64_t i = 0; i < chunks_of(in.bytes(), chunk_bytes); ++i)
    described.xxh3.push_back(
        checksum_of_range(in, i * chunk_bytes, std::min(chunk_bytes, in.bytes() - i * chunk_bytes)));
  return described;
}

void write_manifest(const fs::path& dir, const CheckpointManifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) {
    Json checksums = Json::array();
    for (const uint64_t checksum : file.xxh3) checksums.push_back(checksum_text(checksum));
    files[name] = {{"bytes", file.bytes}, {"xxh3", checksums}};
  }
  const Json json = {{"format", kFormat},
                     {"step", manifest.step},
                     {"ranks", manifest.ranks},
                     {"chunk_bytes", manifest.chunk_bytes},
                     {"files", files}};
  write_durable(dir / kManifestFile, json.dump(1) + "\n");
}

CheckpointManifest read_manifest(const fs::path& dir) {
  const fs::path file = dir / kManifestFile;
  std::error_code error;
  if (!fs::exists(file, error) && !error)
    throw DataError(
        cat(dir.string(), ": there is no ", kManifestFile, ": this is not a whole checkpoint of Trireme"));
  const Json json = read_json(file);
  const std::string origin = file.string();
  const int64_t format = whole_number(json, "format", {}, origin);
  if (format != kFormat) throw DataError(cat(origin, ": format ", format, "; this version reads ", kFormat));
  CheckpointManifest manifest;
  manifest.chunk_bytes = whole_number(json, "chunk_bytes", {1}, origin);
  manifest.step = whole_number(json, "step", {0, kLargestExactWhole}, origin);
  manifest.ranks = static_cast<int>(whole_number(json, "ranks", {1, kMostRanks}, origin));
  if (const auto named = step_of_folder(dir); named && *named != manifest.step)
    throw DataError(
        cat(origin, ": \"step\" is ", manifest.step, ", but the folder is that of step ", *named));
  for (const auto& [name, entry] : object_value(json, "files", origin).items()) {
    if ((!is_plain_file_name(name) && !is_further_chat_template(name)) || name == kManifestFile ||
        name == kChatTemplatesFolder)
      throw DataError(cat(origin, ": \"files\" has \"", quotation(name),
                          "\"; expected names of files in this folder, or of ", kChatTemplatesFolder,
                          "/NAME.jinja"));
    const std::string file_origin = cat(origin, ": ", quotation(name));
    const int64_t bytes = whole_number(entry, "bytes", {}, file_origin);
    manifest.files[name] = {bytes, parse_checksums(entry, bytes, manifest.chunk_bytes, file_origin)};
  }
  for (const char* needed : {"config.json", kWeightIndexFile, kTrainerStateFile})
    if (!manifest.files.contains(needed))
      throw DataError(cat(origin, ": \"files\" lacks ", needed, ", which every checkpoint has"));
  check_shards(manifest, origin);
  return manifest;
}

void check_readable(const fs::path& dir) {
  for (const fs::path& file : entries_of(dir))
    if (::access(file.c_str(), R_OK) != 0 && errno != ENOENT)
      throw_file_error(file.string() + ": cannot be read", errno);
}

int64_t verify_checkpoint(const fs::path& dir, const ChunkShare& share) {
  const CheckpointManifest manifest = read_manifest(dir);
  int64_t number = 0, read_bytes = 0;
  for (const auto& [name, expected] : manifest.files) {
    const fs::path file = dir / name;
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(file, error));
    if (error) throw_file_error(file.string(), error.value(), "; the checkpoint's manifest lists it");
    if (bytes != expected.bytes)
      throw DataError(
          cat(file.string(), ": ", bytes, " bytes; the checkpoint's manifest says ", expected.bytes));
    std::optional<InputFile> in;
    for (size_t i = 0; i < expected.xxh3.size(); ++i) {
      if (number++ % share.ranks != share.rank) continue;
      if (!in) in.emplace(file);
      const int64_t begin = static_cast<int64_t>(i) * manifest.chunk_bytes;
      const int64_t count = std::min(manifest.chunk_bytes, bytes - begin);
      const uint64_t checksum = checksum_of_range(*in, begin, count);
      read_bytes += count;
      if (checksum != expected.xxh3[i])
        throw DataError(cat(file.string(), ": bytes ", begin, " to ", begin + count, " have checksum ",
                            checksum_text(checksum), "; the checkpoint's manifest says ",
                            checksum_text(expected.xxh3[i]),
                            ": the file was changed or damaged; use another checkpoint"));
    }
    if (in && name == kWeightIndexFile) check_weight_index(file, manifest);
  }
  return read_bytes;
}

}  // namespace trireme
