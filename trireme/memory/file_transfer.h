// Moves bytes between memory and a file without leaving them in the page cache. Uses O_DIRECT where the file
// system can, else the page cache, which it empties afterwards. Handles signals and short transfers.
//
//   memory   | 4 KiB | 4 KiB | 4 KiB | rest |      whole aligned blocks: directly between disk and tensor
//   file     | 4 KiB | 4 KiB | 4 KiB | 4 KiB|      all else: through a buffer of at most 1 MiB
//
// O_DIRECT, because a copy through the page cache takes processor time from the computation:
// docs/benchmarks/README.md, "Disk".
#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/round_up.h"

namespace trireme {

inline constexpr int64_t kFileBlock_bytes = 4096;
constexpr int64_t up_to_file_block(int64_t bytes) {
  return round_up(bytes, kFileBlock_bytes);
}

// Thread-safe.
class FileTransfer {
 public:
  enum class Access { automatic, page_cache };

  // `descriptor`: an empty file, open as long as this object is used. Sets O_DIRECT on it where that works.
  explicit FileTransfer(int descriptor, Access access = Access::automatic);
  bool past_page_cache() const { return direct_; }

  // Both return an empty text, or the failure and how many bytes came before it. On return the memory may be
  // used again. A write begins at a multiple of kFileBlock_bytes. It may change the rest of its last block,
  // which must be in the file. A read begins anywhere.
  std::string write(int64_t offset, const char* data, int64_t bytes) const;
  std::string read(int64_t offset, char* data, int64_t bytes) const;

 private:
  int descriptor_;
  bool direct_ = false;
};

}  // namespace trireme
