// Moves bytes between memory and a file without leaving them in the page cache, whatever the system does in between
// (signals, short transfers): past the cache (O_DIRECT) where the file system can, else through it, emptied behind.
//
//   memory   | 4 KiB | 4 KiB | 4 KiB | rest |      whole blocks at a block's address: between the disk and the tensor
//   file     | 4 KiB | 4 KiB | 4 KiB | 4 KiB|      all else: by way of a buffer of 1 MiB at most
//
// Past the cache, because what the processor copies there it does not compute: docs/benchmarks/README.md, "Disk".
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

inline constexpr int64_t kFileBlock_bytes = 4096;
// The bytes of the blocks that so many bytes, from a block's begin on, take.
constexpr int64_t up_to_file_block(int64_t bytes) {
  return (bytes + kFileBlock_bytes - 1) / kFileBlock_bytes * kFileBlock_bytes;
}

// Thread-safe.
class FileTransfer {
 public:
  enum class Way { automatic, page_cache };

  // `descriptor` is of an empty file and open as long as this object is used; O_DIRECT is set on it where that works.
  explicit FileTransfer(int descriptor, Way way = Way::automatic);
  bool past_page_cache() const { return direct_; }

  // Both return an empty text, or what went wrong and after how many bytes. They return when the memory may be used
  // again. A write begins at a block of the file (a multiple of kFileBlock_bytes), and may change what lies behind its
  // bytes in their last block, which must be in the file. A read begins anywhere.
  std::string write(int64_t offset, const char* data, int64_t bytes) const;
  std::string read(int64_t offset, char* data, int64_t bytes) const;

 private:
  int descriptor_;
  bool direct_ = false;
};

}  // namespace trireme
