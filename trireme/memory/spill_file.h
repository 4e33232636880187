// Space on disk for tensors that do not fit in memory: one file without a name (it is gone when the process
// ends, also by kill -9), cut into regions, read and written by threads of its own while computation goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>

namespace trireme {

// Thread-safe. Several threads may wait for one Transfer; it is assigned to and moved from by one at a time.
class SpillFile {
 public:
  struct Region {
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  // A read or write under way. The memory it works on must live until wait() returned; the destructor and
  // assignment wait too.
  class Transfer {
   public:
    Transfer() = default;
    Transfer(Transfer&&) noexcept = default;
    Transfer& operator=(Transfer&&) noexcept;
    ~Transfer();
    // Throws the DataError of a failed read or write (file's folder, bytes, reason, what to do), each time
    // that it is called. Once done, does nothing.
    void wait();
    bool pending() const;

   private:
    friend class SpillFile;
    struct State;
    explicit Transfer(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;  // none: nothing to wait for
  };

  // The folder must exist and be writable (ConfigError otherwise). `limit_bytes` 0: no limit but the disk's.
  SpillFile(const std::filesystem::path& folder, int64_t limit_bytes);
  // Finishes what is under way.
  ~SpillFile();
  SpillFile& operator=(SpillFile&&) = delete;

  // Space of `bytes` (0: an empty region, which takes no space); blocks on disk are taken at once, so that a
  // full disk shows here and not in a write. ConfigError beyond the limit, DataError where the disk is full:
  // both name the bytes in use and asked. After either, all is as before.
  Region reserve(int64_t bytes);
  // The region may be given to another reserve, its blocks go back to the disk where the file system can. No
  // transfer on it may be pending.
  void release(const Region& region);

  // region.bytes from `data`. `owner` is let go as soon as they are written: what it keeps alive then makes
  // room without anyone's waiting. A write is of a whole region; any part of one can be read.
  Transfer write(const Region& region, const void* data, std::shared_ptr<const void> owner = nullptr);
  Transfer read(const Region& region, void* data);  // region.bytes into `data`

  // In blocks of 4 KiB, in which space is handed out.
  int64_t reserved_bytes() const;
  int64_t peak_reserved_bytes() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace trireme
