// A regular file from outside, open for reading. Opening never blocks: a FIFO is refused. So is a name with a
// zero byte, where the system would cut the name. Reads are system calls, not a memory map: if the file
// shrinks or fails meanwhile, a read throws a DataError that names it, where a map would end the process with
// SIGBUS.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/base/file_descriptor.h"

namespace trireme {

// A name inside a folder: no separators, no zero byte, neither "." nor "..".
bool is_plain_file_name(const std::string& name);

class InputFile {
 public:
  // Throws a DataError with the file name and the reason; `expected` is what should be there.
  explicit InputFile(const std::filesystem::path& file, const std::string& expected = "a file");

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_.get(); }
  int64_t bytes() const { return bytes_; }  // when it was opened
  // How many bytes all reads so far gave, by any thread.
  int64_t read_bytes() const { return read_bytes_; }

  // Reads bytes [offset, offset + count). Throws DataError if the file now ends earlier or cannot be read.
  void read(int64_t offset, void* to, int64_t count) const;
  // Reads up to `count` bytes and returns their number; fewer only at the end of the file.
  int64_t read_some(int64_t offset, void* to, int64_t count) const;
  // The whole content. Throws DataError if the file has more than `limit_bytes`.
  std::string whole(int64_t limit_bytes) const;

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  int64_t bytes_ = 0;
  mutable std::atomic<int64_t> read_bytes_ = 0;
};

}  // namespace trireme
