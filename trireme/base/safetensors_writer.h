// Writes one safetensors file without holding it in memory: the header from the known shapes first, then one
// tensor after the other. The file appears under its name only when it is whole and on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme {

struct SafetensorsSpec {
  std::string name;
  std::string dtype;  // as in SafetensorsEntry
  std::vector<int64_t> shape;
};

class SafetensorsWriter {
 public:
  // Opens FILE.partial and reserves its whole size. DataError when the disk has no room: says the bytes
  // needed, and leaves nothing behind.
  SafetensorsWriter(const std::filesystem::path& file, std::vector<SafetensorsSpec> specs,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  // Removes the partial file unless `finish` was reached.
  ~SafetensorsWriter();
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  // The next tensor's values, in the order of `specs`; a tensor may come in several calls. `bytes` past its
  // size is an InternalError.
  void write(const std::string& name, const void* data, int64_t bytes);
  // Syncs and renames into place. InternalError when a tensor is not complete.
  void finish();

  int64_t file_bytes() const { return file_bytes_; }

 private:
  void put(const void* data, int64_t bytes);
  [[noreturn]] void fail(const std::string& doing, int error);
  void remove_partial() noexcept;

  std::filesystem::path file_;
  std::filesystem::path partial_;
  std::vector<SafetensorsSpec> specs_;
  int descriptor_ = -1;
  int64_t file_bytes_ = 0;
  size_t next_ = 0;              // tensor being written
  int64_t written_of_next_ = 0;  // bytes
};

}  // namespace trireme
