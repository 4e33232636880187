// The checksums of the files of texts, kept in the run's folder (OUTPUT_DIR/data/sources.json). A start does
// not read unchanged files again.
//
//   {"format": 1, "xxh3": "9f...", "sources": {"/data/corpus": {"a.txt":
//    {"bytes": 1234, "modified_ns": 1767225600000000000, "xxh3": "3c..."}, ...}, ...}}
//
// The outer "xxh3" is of "sources". A file counts as unchanged while its name, size and modification time
// are. So one change is not seen: other bytes, as many as before, under the same time (as after touch -r). A
// file modified less than two seconds before it was read is not remembered: with a coarse clock, the next
// write might get the same time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme {

struct FileContent {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;  // file_checksum
};

class RememberedChecksums {
 public:
  // Reads `file` if it exists. Tells `note` about a damaged file, and removes it.
  RememberedChecksums(std::filesystem::path file, std::function<void(const std::string&)> note);

  // Of each of `files`, which are `input` or lie below it. Stores the checksums of files that
  // it had to read; tells `note` if the disk refuses. DataError when a file of the text cannot be read.
  std::vector<FileContent> of(const std::filesystem::path& input,
                              const std::vector<std::filesystem::path>& files);

 private:
  struct FileState {
    int64_t bytes = 0;
    int64_t modified_ns = 0;
    bool operator==(const FileState&) const = default;
  };
  struct KnownFile {
    FileState state;
    uint64_t xxh3 = 0;
    bool operator==(const KnownFile&) const = default;
  };
  using KnownFiles = std::map<std::string, KnownFile>;  // by name below the input

  static FileState state_of(const std::filesystem::path& file);
  void read();
  void write() const;

  std::filesystem::path file_;
  std::function<void(const std::string&)> note_;
  std::map<std::string, KnownFiles> sources_;  // by the input's path
};

}  // namespace trireme
