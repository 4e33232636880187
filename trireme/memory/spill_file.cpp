#include "trireme/memory/spill_file.h"

#include <cerrno>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/memory/nameless_file.h"

namespace trireme {
namespace {

// One thread prepares while the disk works for the other.
constexpr int kThreads = 2;

std::string exact(int64_t bytes) {
  return cat(format_bytes(bytes), " (", bytes, " bytes)");
}

// Returns 0, or the error with which the file system refused the blocks.
int take_blocks(int descriptor, int64_t offset, int64_t bytes) {
  int error = 0;
  do {
    error = ::fallocate(descriptor, 0, offset, bytes) == 0 ? 0 : errno;
    // Where the file system has no fallocate, the C library writes zeros.
    if (error == EOPNOTSUPP) error = ::posix_fallocate(descriptor, offset, bytes);
  } while (error == EINTR);
  return error;
}

}  // namespace

struct SpillFile::Transfer::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::string failure;  // empty: none
  std::shared_ptr<Waits> waits;
};

SpillFile::Transfer& SpillFile::Transfer::operator=(Transfer&& other) noexcept {
  const Transfer old(std::move(*this));  // its destructor waits
  state_ = std::move(other.state_);
  return *this;
}

SpillFile::Transfer::~Transfer() {
  if (state_ == nullptr) return;
  std::unique_lock lock(state_->mutex);
  wait_until_done(lock);
}

void SpillFile::Transfer::wait_until_done(std::unique_lock<std::mutex>& lock) {
  if (state_->done) return;
  const double begin = now_seconds();
  state_->changed.wait(lock, [this] { return state_->done; });
  if (state_->waits->thread == std::this_thread::get_id()) state_->waits->seconds += now_seconds() - begin;
}

void SpillFile::Transfer::wait() {
  if (state_ == nullptr) return;
  std::unique_lock lock(state_->mutex);
  wait_until_done(lock);
  if (!state_->failure.empty()) throw DataError(state_->failure);
}

bool SpillFile::Transfer::pending() const {
  if (state_ == nullptr) return false;
  const std::lock_guard lock(state_->mutex);
  return !state_->done;
}

SpillFile::SpillFile(const std::filesystem::path& folder, int64_t limit_bytes)
    : folder_(folder.string()),
      file_(open_nameless_file(folder)),
      bytes_(file_.get()),
      limit_bytes_(limit_bytes) {
  for (int i = 0; i < kThreads; ++i)
    threads_.emplace_back([this](const std::stop_token& stop) { serve(stop); });
}

SpillFile::Region SpillFile::reserve(int64_t bytes) {
  TRIREME_ASSERT(bytes >= 0 && bytes < INT64_MAX / 4, bytes, " bytes asked");
  if (bytes == 0) return {};
  const int64_t size = up_to_file_block(bytes);
  const std::lock_guard lock(space_mutex_);
  if (limit_bytes_ > 0 && size > limit_bytes_ - reserved_bytes_)
    throw ConfigError(cat("offload to disk in ", folder_, ": asked for ", exact(bytes), " with ",
                          exact(reserved_bytes_), " in use, beyond the limit of ", exact(limit_bytes_),
                          "; raise --offload_limit, or offload less to disk"));
  // Checks first where the system reports free space: fallocate would fill the disk, then fail.
  if (const std::optional<int64_t> free = free_on_disk(); free && size > *free)
    refuse(bytes, cat("the disk has ", exact(*free), " free"));
  const int64_t offset = space_.take(size);
  if (const int error = take_blocks(file_.get(), offset, size)) {
    free_blocks(offset, size);
    space_.give_back(offset, size);
    refuse(bytes, std::strerror(error));
  }
  reserved_bytes_ += size;
  return {offset, bytes};
}

void SpillFile::release(const Region& region) {
  if (region.bytes == 0) return;
  const int64_t size = up_to_file_block(region.bytes);
  const std::lock_guard lock(space_mutex_);
  space_.give_back(region.offset, size);
  free_blocks(region.offset, size);
  reserved_bytes_ -= size;
}

SpillFile::Transfer SpillFile::write(const Region& region, const void* data,
                                     std::shared_ptr<const void> owner) {
  // A write only reads from `data`; one job type serves reads and writes.
  return begin({true, region, static_cast<char*>(const_cast<void*>(data)), std::move(owner)});
}

SpillFile::Transfer SpillFile::read(const Region& region, void* data) {
  return begin({false, region, static_cast<char*>(data)});
}

SpillFile::Transfer SpillFile::begin(Job job) {
  if (job.region.bytes == 0) return {};
  auto state = std::make_shared<Transfer::State>();
  state->waits = waits_;
  job.state = state;
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back(std::move(job));
  }
  queue_changed_.notify_one();
  return Transfer(std::move(state));
}

int64_t SpillFile::reserved_bytes() const {
  const std::lock_guard lock(space_mutex_);
  return reserved_bytes_;
}

std::string SpillFile::transfer(const Job& job) const {
  const auto [offset, bytes] = job.region;
  try {
    return job.writes ? bytes_.write(offset, job.data, bytes) : bytes_.read(offset, job.data, bytes);
  } catch (const std::exception& error) {
    return error.what();
  }
}

void SpillFile::serve(const std::stop_token& stop) {
  while (true) {
    Job job;
    {
      std::unique_lock lock(queue_mutex_);
      // Also true after a stop request while jobs are left: the thread finishes them first.
      if (!queue_changed_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    const std::string problem = transfer(job);
    job.owner.reset();
    const std::lock_guard lock(job.state->mutex);
    if (!problem.empty())
      job.state->failure =
          cat("offload to disk in ", folder_, ": ", job.writes ? "writing " : "reading ",
              exact(job.region.bytes), " at offset ", job.region.offset, " failed: ", problem,
              "; check that disk, or give --offload_dir a folder on another one");
    job.state->done = true;
    job.state->changed.notify_all();
  }
}

std::optional<int64_t> SpillFile::free_on_disk() const {
  struct statvfs disk = {};
  // Released blocks that a file system keeps count neither as free nor as this rank's.
  if (keeps_blocks_ || ::fstatvfs(file_.get(), &disk) != 0 || disk.f_blocks == 0) return {};
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

void SpillFile::free_blocks(int64_t offset, int64_t bytes) {
  const int result =
      TEMP_FAILURE_RETRY(::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes));
  if (result != 0) keeps_blocks_ = true;
}

void SpillFile::refuse(int64_t bytes, const std::string& reason) const {
  throw DataError(cat("offload to disk in ", folder_, ": cannot take ", exact(bytes), " with ",
                      exact(reserved_bytes_), " in use by this rank: ", reason,
                      "; make room there, give --offload_dir a folder on a larger disk, or offload less to "
                      "disk (--offload_limit keeps a rank from filling a disk)"));
}

}  // namespace trireme
