// Writes one safetensors file without holding it in memory: first the header from the known shapes, then one
// tensor after the other. The file gets its name only when it is complete and on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/file_descriptor.h"

namespace trireme {

struct SafetensorsSpec {
  std::string name;
  std::string dtype;  // as in SafetensorsEntry
  std::vector<int64_t> shape;
};

class SafetensorsWriter {
 public:
  // Opens FILE.partial and reserves its whole size. If the disk has no room, removes the file and throws a
  // DataError with the bytes needed.
  SafetensorsWriter(const std::filesystem::path& file, std::vector<SafetensorsSpec> specs,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  // Removes the partial file unless finish() was called.
  ~SafetensorsWriter();
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  // The next tensor's values, in the order of `specs`; a tensor may come in several calls. Throws
  // InternalError if `bytes` exceeds the rest of the tensor.
  void write(const std::string& name, const void* data, int64_t bytes);
  // Syncs the file and gives it its name. Throws InternalError if a tensor is incomplete.
  void finish();

 private:
  void put(const void* data, int64_t bytes);
  [[noreturn]] void fail(const std::string& doing, int error);
  void remove_partial() noexcept;

  std::filesystem::path file_;
  std::filesystem::path partial_;
  std::vector<SafetensorsSpec> specs_;
  FileDescriptor descriptor_;
  int64_t file_bytes_ = 0;
  size_t next_ = 0;              // tensor being written
  int64_t written_of_next_ = 0;  // bytes
};

}  // namespace trireme
