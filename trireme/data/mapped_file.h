// A file mapped read-only into memory. An empty file maps to an empty range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>

namespace trireme {

class MappedFile {
 public:
  // Throws DataError that names the file when it cannot be opened or mapped.
  explicit MappedFile(const std::filesystem::path& file);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

  // A number at any byte offset, aligned or not. The caller has checked that it lies inside.
  template <typename T>
  T read(int64_t offset) const {
    T value;
    std::memcpy(&value, data_ + offset, sizeof(T));
    return value;
  }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace trireme
