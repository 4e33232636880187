// A regular file from outside, open for reading. Opening never waits (a FIFO is refused), and a name with a zero byte is
// refused in place of the file before it. Reads are system calls, not a memory map: a file that shrinks or fails meanwhile is
// a DataError that names it, where a map would end the process with SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

// A name inside a folder: no separators, no zero byte, neither "." nor "..".
bool is_plain_file_name(const std::string& name);

class InputFile {
 public:
  // Throws DataError that names the file and says why it cannot be opened; `expected` is what should be there.
  explicit InputFile(const std::filesystem::path& file, const std::string& expected = "a file");
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  int64_t bytes() const { return bytes_; }  // when it was opened

  // Bytes [offset, offset + count). DataError: the file ends before that now, or cannot be read.
  void read(int64_t offset, void* to, int64_t count) const;
  // As many of them as there are; fewer only at the file's end.
  int64_t read_some(int64_t offset, void* to, int64_t count) const;
  // DataError when the file has more than `limit_bytes`.
  std::string whole(int64_t limit_bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

}  // namespace trireme
