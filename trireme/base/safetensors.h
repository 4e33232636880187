// safetensors files (huggingface.co/docs/safetensors): eight bytes with the header's length, a JSON header
// (name -> dtype, shape, data_offsets), then the raw little-endian values, without gaps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/input_file.h"

namespace trireme {

// The files of a model directory with weights: one, or shards and an index that lists them.
inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kWeightIndexFile = "model.safetensors.index.json";

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
  const InputFile* source = nullptr;  // lives as long as the SafetensorsFile
  int64_t offset = 0;                 // of its first byte in the file

  const std::filesystem::path& file() const { return source->path(); }
  // Reads bytes [begin, begin + count) of the values. Throws a DataError with the file name if the file was
  // shortened meanwhile or cannot be read.
  void read(int64_t begin, void* to, int64_t count) const { source->read(offset + begin, to, count); }
  std::string describe() const;  // "model.safetensors: tensor 'lm_head.weight' (F32 [320, 64])"
};

// One file; the constructor opens and fully checks it. A DataError names the file, the tensor, the offsets
// and the likely cause (an interrupted download, a git-lfs pointer instead of the file).
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& file);
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const SafetensorsEntry* find(const std::string& name) const;  // nullptr when absent
  const SafetensorsEntry& at(const std::string& name) const;    // DataError when absent
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return file_.path(); }
  int64_t read_bytes() const { return file_.read_bytes(); }  // so far
  int64_t header_bytes() const { return data_at_; }          // what opening the file reads

 private:
  void parse_header();
  void check_offsets() const;

  InputFile file_;
  int64_t data_at_ = 0;  // where the header ends
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// The weights of a model directory. Throws DataError if both files are missing, a shard is missing, or a
// shard lacks a tensor that the index lists for it.
class SafetensorsSet {
 public:
  // `single`: the name of the file where the weights are one.
  explicit SafetensorsSet(const std::filesystem::path& dir, const char* single = kWeightsFile);
  const SafetensorsEntry* find(const std::string& name) const;
  const SafetensorsEntry& at(const std::string& name) const;
  std::vector<std::string> names() const;  // sorted
  int64_t read_bytes() const;              // of all files, so far
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  bool is_single() const { return single_; }  // else there is an index

 private:
  std::filesystem::path dir_;
  bool single_ = false;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsEntry*> entries_;
};

}  // namespace trireme
