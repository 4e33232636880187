#include "trireme/memory/file_transfer.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <new>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"

namespace trireme {
namespace {

// Large enough for a disk to run at its full rate, small compared with the tensors.
constexpr int64_t kStepBytes = int64_t{8} << 20;
constexpr int64_t kBounceBytes = int64_t{1} << 20;
// Smaller transfers stay in the page cache: waiting would cost more than the memory is worth.
constexpr int64_t kSettledBytes = int64_t{1} << 20;

std::string problem(const std::string& what, int64_t done) {
  return cat(what, " after ", format_bytes(done));
}

// Returns an empty text, or the reason of the failure.
std::string write_all(int descriptor, int64_t offset, const char* data, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t wrote = ::pwrite(descriptor, data + done, static_cast<size_t>(bytes - done), offset + done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return std::strerror(errno);
    if (wrote == 0) return "the disk takes no more";
    done += wrote;
  }
  return {};
}

std::string read_all(int descriptor, int64_t offset, char* data, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(descriptor, data + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::strerror(errno);
    if (got == 0) return "the file ends";
    done += got;
  }
  return {};
}

int64_t down_to_block(int64_t bytes) {
  return bytes / kFileBlock_bytes * kFileBlock_bytes;
}
bool at_block(const char* data) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(kFileBlock_bytes) == 0;
}

// A buffer aligned to a block, allocated at its first use.
class Bounce {
 public:
  explicit Bounce(int64_t bytes)
      : bytes_(std::min(kBounceBytes, up_to_file_block(bytes) + kFileBlock_bytes)) {}
  int64_t bytes() const { return bytes_; }
  char* data() {
    if (data_ == nullptr)
      data_.reset(static_cast<char*>(
          std::aligned_alloc(static_cast<size_t>(kFileBlock_bytes), static_cast<size_t>(bytes_))));
    if (data_ == nullptr) throw std::bad_alloc();
    return data_.get();
  }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  int64_t bytes_;
  std::unique_ptr<char, Free> data_;
};

std::string write_direct(int descriptor, int64_t offset, const char* data, int64_t bytes) {
  Bounce bounce(bytes);
  for (int64_t done = 0; done < bytes;) {
    const int64_t blocks = down_to_block(bytes - done);
    int64_t count = std::min(kStepBytes, blocks);
    std::string failed;
    if (count > 0 && at_block(data + done)) {
      failed = write_all(descriptor, offset + done, data + done, count);
    } else {
      count = std::min(bounce.bytes(), bytes - done);
      const int64_t padded = up_to_file_block(count);
      std::memcpy(bounce.data(), data + done, static_cast<size_t>(count));
      std::memset(bounce.data() + count, 0, static_cast<size_t>(padded - count));
      failed = write_all(descriptor, offset + done, bounce.data(), padded);
    }
    if (!failed.empty()) return problem(failed, done);
    done += count;
  }
  return {};
}

std::string read_direct(int descriptor, int64_t offset, char* data, int64_t bytes) {
  Bounce bounce(bytes);
  for (int64_t done = 0; done < bytes;) {
    const int64_t from = offset + done, begin = down_to_block(from);
    int64_t count = std::min(kStepBytes, down_to_block(bytes - done));
    std::string failed;
    if (count > 0 && begin == from && at_block(data + done)) {
      failed = read_all(descriptor, from, data + done, count);
    } else {
      const int64_t span = std::min(bounce.bytes(), up_to_file_block(offset + bytes) - begin);
      count = std::min(span - (from - begin), bytes - done);
      failed = read_all(descriptor, begin, bounce.data(), span);
      if (failed.empty())
        std::memcpy(data + done, bounce.data() + (from - begin), static_cast<size_t>(count));
    }
    if (!failed.empty()) return problem(failed, done);
    done += count;
  }
  return {};
}

// Waits until the step is on the disk, then drops it from the page cache. A memory control group counts
// cached pages as memory of the process, and the kernel cannot drop unwritten pages quickly. Without this
// call an offloaded tensor would stay in memory, up to the kernel's limit for dirty pages. Returns the error
// of writing out, or 0 if there is none or nothing to write out (tmpfs).
int finish(int descriptor, int64_t offset, int64_t bytes) {
  const int result =
      ::sync_file_range(descriptor, offset, bytes,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  const int error = result == 0 ? 0 : errno;
  ::posix_fadvise(descriptor, offset, bytes, POSIX_FADV_DONTNEED);
  return error == EIO || error == ENOSPC || error == EDQUOT ? error : 0;
}

std::string write_cached(int descriptor, int64_t offset, const char* data, int64_t bytes) {
  for (int64_t step = 0; step < bytes; step += kStepBytes) {
    const int64_t count = std::min(bytes - step, kStepBytes);
    if (const std::string failed = write_all(descriptor, offset + step, data + step, count); !failed.empty())
      return problem(failed, step);
    if (bytes < kSettledBytes) return {};
    // Starts writing this step out; the disk works during the next copy.
    ::sync_file_range(descriptor, offset + step, count, SYNC_FILE_RANGE_WRITE);
    if (step == 0) continue;
    if (const int error = finish(descriptor, offset + step - kStepBytes, kStepBytes))
      return problem(std::strerror(error), step - kStepBytes);
  }
  const int64_t last = (bytes - 1) / kStepBytes * kStepBytes;
  if (const int error = finish(descriptor, offset + last, bytes - last))
    return problem(std::strerror(error), last);
  return {};
}

std::string read_cached(int descriptor, int64_t offset, char* data, int64_t bytes) {
  for (int64_t step = 0; step < bytes; step += kStepBytes) {
    const int64_t end = std::min(bytes, step + kStepBytes);
    // The disk reads the next step while this step is copied.
    if (end < bytes)
      ::posix_fadvise(descriptor, offset + end, std::min(bytes - end, kStepBytes), POSIX_FADV_WILLNEED);
    if (const std::string failed = read_all(descriptor, offset + step, data + step, end - step);
        !failed.empty())
      return problem(failed, step);
    // The bytes are in the tensor now; see finish().
    if (bytes < kSettledBytes) return {};
    ::posix_fadvise(descriptor, offset + step, end - step, POSIX_FADV_DONTNEED);
  }
  return {};
}

// Some file systems accept O_DIRECT but refuse the first transfer, or need larger blocks: this tries one.
bool takes_direct(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0) return false;
  Bounce block(1);
  std::memset(block.data(), 0, static_cast<size_t>(kFileBlock_bytes));
  const ssize_t wrote =
      TEMP_FAILURE_RETRY(::pwrite(descriptor, block.data(), static_cast<size_t>(kFileBlock_bytes), 0));
  // A full disk is no refusal: reserving space reports it later.
  const bool refused = wrote < 0 && (errno == EINVAL || errno == EOPNOTSUPP);
  if (::ftruncate(descriptor, 0) == 0 && !refused) return true;
  ::fcntl(descriptor, F_SETFL, flags);
  return false;
}

}  // namespace

FileTransfer::FileTransfer(int descriptor, Access access)
    : descriptor_(descriptor), direct_(access == Access::automatic && takes_direct(descriptor)) {}

std::string FileTransfer::write(int64_t offset, const char* data, int64_t bytes) const {
  TRIREME_ASSERT(offset % kFileBlock_bytes == 0, "a write at ", offset);
  if (bytes == 0) return {};
  return direct_ ? write_direct(descriptor_, offset, data, bytes)
                 : write_cached(descriptor_, offset, data, bytes);
}

std::string FileTransfer::read(int64_t offset, char* data, int64_t bytes) const {
  if (bytes == 0) return {};
  return direct_ ? read_direct(descriptor_, offset, data, bytes)
                 : read_cached(descriptor_, offset, data, bytes);
}

}  // namespace trireme
