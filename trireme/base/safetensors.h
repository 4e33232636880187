// safetensors files (huggingface.co/docs/safetensors), read by memory map: eight bytes with the header's
// length, a JSON header (name -> dtype, shape, data_offsets), then the raw little-endian values, without
// gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

// Bytes of one element of a dtype as the format spells it ("F32", "BF16", "I64", ...); 0 when the name is
// unknown.
int64_t safetensors_element_bytes(const std::string& dtype);

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F64" "F32" "F16" "BF16" "I64" "I32" "I16" "I8" "U64" "U32" "U16" "U8" "BOOL"
                      // "F8_E4M3" "F8_E5M2"
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int64_t bytes = 0;
  const std::byte* data = nullptr;  // inside the map: lives as long as the file object; any alignment
  std::filesystem::path file;

  std::string describe() const;  // "model.safetensors: tensor 'lm_head.weight' (F32 [320, 64])"
};

// One file, mapped and fully checked when made. DataError names the file, the tensor and the offsets, and the
// likely cause (an interrupted download, a git-lfs pointer in place of the file).
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& file);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const SafetensorsEntry* find(const std::string& name) const;  // nullptr when absent
  const SafetensorsEntry& at(const std::string& name) const;    // DataError when absent
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return file_; }

 private:
  void parse_header();
  void check_offsets() const;

  std::filesystem::path file_;
  const std::byte* map_ = nullptr;
  int64_t file_bytes_ = 0;
  int64_t header_bytes_ = 0;  // of the JSON text
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// The weights of a model directory: model.safetensors, or the shards that model.safetensors.index.json lists.
// DataError: neither is there, a shard is missing, or a shard lacks a tensor that the index places in it.
class SafetensorsSet {
 public:
  explicit SafetensorsSet(const std::filesystem::path& dir);
  const SafetensorsEntry* find(const std::string& name) const;
  const SafetensorsEntry& at(const std::string& name) const;
  std::vector<std::string> names() const;  // sorted

 private:
  std::filesystem::path dir_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsEntry*> entries_;
};

}  // namespace trireme
