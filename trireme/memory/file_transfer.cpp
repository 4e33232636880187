#include "trireme/memory/file_transfer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"

namespace trireme {
namespace {

// Long enough for a disk to run at its full rate, short beside the tensors.
constexpr int64_t kStepBytes = int64_t{8} << 20;
// Less than this is left to the kernel: waiting would cost more than the memory is worth.
constexpr int64_t kSettledBytes = int64_t{1} << 20;

std::string problem(const char* what, int64_t done) {
  return cat(what, " after ", format_bytes(done));
}

// Waits until the step lies on the disk and takes it out of the page cache. A memory control group counts
// cached pages as its process's own, and those not yet written cannot be given up quickly: without this an
// offloaded tensor would stay in the memory that it was to leave, up to the kernel's limit for dirty pages.
// Returns the error with which writing out ended, 0 where there is none or nothing to write out (tmpfs).
int settle(int descriptor, int64_t offset, int64_t bytes) {
  const int result =
      ::sync_file_range(descriptor, offset, bytes,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  const int error = result == 0 ? 0 : errno;
  ::posix_fadvise(descriptor, offset, bytes, POSIX_FADV_DONTNEED);
  return error == EIO || error == ENOSPC || error == EDQUOT ? error : 0;
}

}  // namespace

std::string write_bytes(int descriptor, int64_t offset, const char* data, int64_t bytes) {
  for (int64_t step = 0; step < bytes; step += kStepBytes) {
    const int64_t end = std::min(bytes, step + kStepBytes);
    for (int64_t done = step; done < end;) {
      const ssize_t wrote = ::pwrite(descriptor, data + done, static_cast<size_t>(end - done), offset + done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return problem(std::strerror(errno), done);
      if (wrote == 0) return problem("the disk takes no more", done);
      done += wrote;
    }
    if (bytes < kSettledBytes) return {};
    // The disk begins with this step and has the time of the next copy to finish it.
    ::sync_file_range(descriptor, offset + step, end - step, SYNC_FILE_RANGE_WRITE);
    if (step == 0) continue;
    if (const int error = settle(descriptor, offset + step - kStepBytes, kStepBytes))
      return problem(std::strerror(error), step - kStepBytes);
  }
  const int64_t last = (bytes - 1) / kStepBytes * kStepBytes;
  if (const int error = settle(descriptor, offset + last, bytes - last))
    return problem(std::strerror(error), last);
  return {};
}

std::string read_bytes(int descriptor, int64_t offset, char* data, int64_t bytes) {
  for (int64_t step = 0; step < bytes; step += kStepBytes) {
    const int64_t end = std::min(bytes, step + kStepBytes);
    // The disk brings the next step while this one is copied.
    if (end < bytes)
      ::posix_fadvise(descriptor, offset + end, std::min(bytes - end, kStepBytes), POSIX_FADV_WILLNEED);
    for (int64_t done = step; done < end;) {
      const ssize_t got = ::pread(descriptor, data + done, static_cast<size_t>(end - done), offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return problem(std::strerror(errno), done);
      if (got == 0) return problem("the file ends", done);
      done += got;
    }
    // It is in the tensor now; see settle().
    if (bytes < kSettledBytes) return {};
    ::posix_fadvise(descriptor, offset + step, end - step, POSIX_FADV_DONTNEED);
  }
  return {};
}

}  // namespace trireme
