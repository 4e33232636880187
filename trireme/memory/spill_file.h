// Disk space for tensors that do not fit in memory: one file without a name, gone when the process ends (also
// by kill -9). It is cut into regions. Separate threads read and write them while the computation goes on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/base/file_descriptor.h"
#include "trireme/memory/file_space.h"
#include "trireme/memory/file_transfer.h"

namespace trireme {

// Thread-safe. Several threads may wait for one Transfer; one at a time may assign to it or move from it.
class SpillFile {
 public:
  struct Region {
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  // A running read or write. Its memory must live until wait() returns. Destructor and assignment wait too.
  class Transfer {
   public:
    Transfer() = default;
    Transfer(Transfer&&) noexcept = default;
    Transfer& operator=(Transfer&&) noexcept;
    ~Transfer();
    // Each call throws the DataError of a failed read or write (the file's folder, bytes, reason, what to
    // do). Does nothing after a success.
    void wait();
    bool pending() const;

   private:
    friend class SpillFile;
    struct State;
    void wait_until_done(std::unique_lock<std::mutex>& lock);
    explicit Transfer(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;  // none: nothing to wait for
  };

  // The folder must exist and be writable (ConfigError otherwise). `limit_bytes` 0: no limit but the disk's.
  SpillFile(const std::filesystem::path& folder, int64_t limit_bytes);
  // Finishes the pending transfers.
  ~SpillFile() = default;
  SpillFile& operator=(SpillFile&&) = delete;

  // Reserves `bytes` (0: an empty region, which takes no space). Takes the blocks on disk at once, so that a
  // full disk shows here and not in a write. ConfigError beyond the limit, DataError where the disk is full:
  // both name the bytes in use and the bytes asked. After either, nothing has changed.
  Region reserve(int64_t bytes);
  // Another reserve may use the region again. Its blocks go back to the disk where the file system can. No
  // transfer on the region may be pending.
  void release(const Region& region);

  // Writes region.bytes from `data`. Releases `owner` as soon as they are written, so that its memory becomes
  // free without a wait. A write covers a whole region; a read may cover any part of one.
  Transfer write(const Region& region, const void* data, std::shared_ptr<const void> owner = nullptr);
  Transfer read(const Region& region, void* data);  // region.bytes into `data`

  // Counted in blocks of 4 KiB, in which space is handed out.
  int64_t reserved_bytes() const;
  // In which the thread that made this object waited for transfers; called by that thread.
  double waited_seconds() const { return waits_->seconds; }

 private:
  struct Waits {
    const std::thread::id thread = std::this_thread::get_id();
    double seconds = 0;  // of that thread
  };
  struct Job {
    bool writes = false;
    Region region = {};
    char* data = nullptr;
    std::shared_ptr<const void> owner = nullptr;
    std::shared_ptr<Transfer::State> state = nullptr;
  };
  Transfer begin(Job job);
  void serve(const std::stop_token& stop);
  // Returns an empty text, or the failure: no exception may leave a thread.
  std::string transfer(const Job& job) const;
  std::optional<int64_t> free_on_disk() const;
  void free_blocks(int64_t offset, int64_t bytes);
  [[noreturn]] void refuse(int64_t bytes, const std::string& reason) const;

  const std::string folder_;
  const FileDescriptor file_;
  const FileTransfer bytes_;
  const int64_t limit_bytes_;
  const std::shared_ptr<Waits> waits_ = std::make_shared<Waits>();

  mutable std::mutex space_mutex_;
  FileSpace space_;
  int64_t reserved_bytes_ = 0;
  bool keeps_blocks_ = false;

  std::mutex queue_mutex_;
  std::condition_variable_any queue_changed_;
  std::deque<Job> queue_;
  std::vector<std::jthread> threads_;  // last member: joined before the others are destroyed
};

}  // namespace trireme
