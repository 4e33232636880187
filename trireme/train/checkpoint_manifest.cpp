#include "trireme/train/checkpoint_manifest.h"

#include <charconv>
#include <iomanip>
#include <sstream>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/train/durable_file.h"
#include "trireme/train/file_checksum.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr int kFormat = 1;

std::string hex(uint64_t value) {
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << value;
  return out.str();
}

uint64_t parse_hex(const std::string& text, const fs::path& file) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size())
    throw DataError(cat(file.string(), ": '", text, "' is not a checksum"));
  return value;
}

}  // namespace

ManifestFile describe_file(const fs::path& file) {
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  if (error) throw DataError(cat(file.string(), ": ", error.message()));
  return {static_cast<int64_t>(bytes), file_checksum(file)};
}

void write_manifest(const fs::path& dir, const CheckpointManifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files)
    files[name] = {{"bytes", file.bytes}, {"xxh3", hex(file.xxh3)}};
  const Json json = {
      {"format", kFormat}, {"step", manifest.step}, {"ranks", manifest.ranks}, {"files", files}};
  write_durable(dir / "manifest.json", json.dump(1) + "\n");
}

CheckpointManifest read_manifest(const fs::path& dir) {
  const fs::path file = dir / "manifest.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored))
    throw DataError(
        cat(dir.string(), ": there is no manifest.json: this is not a whole checkpoint of Trireme"));
  const Json json = read_json(file);
  try {
    if (json.at("format").get<int>() != kFormat)
      throw DataError(
          cat(file.string(), ": format ", json.at("format").dump(), "; this version reads ", kFormat));
    CheckpointManifest manifest;
    manifest.step = json.at("step").get<int64_t>();
    manifest.ranks = json.at("ranks").get<int>();
    for (const auto& [name, entry] : json.at("files").items())
      manifest.files[name] = {entry.at("bytes").get<int64_t>(),
                              parse_hex(entry.at("xxh3").get<std::string>(), file)};
    return manifest;
  } catch (const Json::exception& error) {
    throw DataError(cat(file.string(), ": not a checkpoint's manifest: ", error.what()));
  }
}

CheckpointManifest verify_checkpoint(const fs::path& dir) {
  CheckpointManifest manifest = read_manifest(dir);
  for (const auto& [name, expected] : manifest.files) {
    const fs::path file = dir / name;
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    if (error)
      throw DataError(cat(file.string(), ": ", error.message(), "; the checkpoint's manifest lists it"));
    if (static_cast<int64_t>(bytes) != expected.bytes)
      throw DataError(
          cat(file.string(), ": ", bytes, " bytes; the checkpoint's manifest says ", expected.bytes));
    const uint64_t checksum = file_checksum(file);
    if (checksum != expected.xxh3)
      throw DataError(cat(file.string(), ": its bytes have checksum ", hex(checksum),
                          "; the checkpoint's manifest says ", hex(expected.xxh3),
                          ": the file was changed or damaged; use another checkpoint"));
  }
  return manifest;
}

}  // namespace trireme
