#include "tests/support/file_operations.h"

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <sstream>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/failing_file.h"
#include "tests/support/held_sync.h"

namespace trireme::testing {
namespace {

// What the C functions below note must be reached without an object: they have the C library's signatures.
struct Recording {
  std::atomic<bool> on = false;
  std::mutex mutex;
  std::vector<std::string> operations;
};

Recording& recording() {
  static Recording one;
  return one;
}

std::string path_of(int descriptor) {
  char path[4096];
  const auto length = ::readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof(path));
  return length < 0 ? "?" : std::string(path, static_cast<size_t>(length));
}

void note(const std::string& operation) {
  const std::lock_guard<std::mutex> lock(recording().mutex);
  auto& all = recording().operations;
  if (all.empty() || all.back() != operation) all.push_back(operation);
}

struct Holding {
  std::mutex mutex;
  std::condition_variable released;
  std::string part;  // empty: nothing is held
  bool reached = false;
};

Holding& holding() {
  static Holding one;
  return one;
}

void wait_while_held(int descriptor) {
  std::unique_lock lock(holding().mutex);
  const std::string& part = holding().part;
  if (part.empty()) return;
  const std::string path = path_of(descriptor);
  if (path.find(part) == std::string::npos) return;
  holding().reached = true;
  holding().released.wait(lock, [&] { return part.empty() || path.find(part) == std::string::npos; });
}

struct Failing {
  std::mutex mutex;
  FileCall call = FileCall::read;
  std::string part;  // empty: nothing fails
  int error = 0;
  bool reached = false;
};

Failing& failing() {
  static Failing one;
  return one;
}

// Sets errno where the call is to fail.
bool is_to_fail(FileCall call, const std::string& path) {
  const std::lock_guard lock(failing().mutex);
  if (failing().part.empty() || failing().call != call) return false;
  if (path.find(failing().part) == std::string::npos) return false;
  failing().part.clear();
  failing().reached = true;
  errno = failing().error;
  return true;
}

}  // namespace

FailingFile::FailingFile(FileCall call, const std::string& part, int error) {
  const std::lock_guard lock(failing().mutex);
  failing().call = call;
  failing().part = part;
  failing().error = error;
  failing().reached = false;
}

FailingFile::~FailingFile() {
  const std::lock_guard lock(failing().mutex);
  failing().part.clear();
}

bool FailingFile::reached() const {
  const std::lock_guard lock(failing().mutex);
  return failing().reached;
}

HeldSync::HeldSync(const std::string& part) {
  const std::lock_guard lock(holding().mutex);
  holding().part = part;
  holding().reached = false;
}

HeldSync::~HeldSync() {
  release();
}

void HeldSync::release() {
  {
    const std::lock_guard lock(holding().mutex);
    holding().part.clear();
  }
  holding().released.notify_all();
}

bool HeldSync::reached() const {
  const std::lock_guard lock(holding().mutex);
  return holding().reached;
}

FileOperations::FileOperations() {
  const std::lock_guard<std::mutex> lock(recording().mutex);
  recording().operations.clear();
  recording().on = true;
}

FileOperations::~FileOperations() {
  recording().on = false;
}

std::vector<std::string> FileOperations::recorded() const {
  const std::lock_guard<std::mutex> lock(recording().mutex);
  return recording().operations;
}

std::vector<std::string> FileOperations::in(const std::string& folder) const {
  std::vector<std::string> kept;
  for (const std::string& operation : recorded()) {
    std::istringstream words(operation);
    std::string word, text;
    bool inside = false;
    while (words >> word) {
      if (word == folder) word = folder + "/.";
      if (word.starts_with(folder + "/")) {
        inside = true;
        word = word.substr(folder.size() + 1);
      }
      text += (text.empty() ? "" : " ") + word;
    }
    if (inside) kept.push_back(text);
  }
  return kept;
}

}  // namespace trireme::testing

using trireme::testing::FileCall;
using trireme::testing::is_to_fail;
using trireme::testing::note;
using trireme::testing::path_of;
using trireme::testing::recording;
using trireme::testing::wait_while_held;

extern "C" {

ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (recording().on) note("write " + path_of(descriptor));
  return syscall(SYS_write, descriptor, data, bytes);
}

int fsync(int descriptor) {
  if (recording().on) note("sync " + path_of(descriptor));
  wait_while_held(descriptor);
  if (is_to_fail(FileCall::sync, path_of(descriptor))) return -1;
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

ssize_t pread(int descriptor, void* to, size_t bytes, off_t offset) {
  if (is_to_fail(FileCall::read, path_of(descriptor))) return -1;
  return syscall(SYS_pread64, descriptor, to, bytes, offset);
}

int fdatasync(int descriptor) {
  if (recording().on) note("sync " + path_of(descriptor));
  return static_cast<int>(syscall(SYS_fdatasync, descriptor));
}

int rename(const char* from, const char* to) noexcept {
  if (recording().on) note(std::string("rename ") + from + " " + to);
  if (is_to_fail(FileCall::rename, from)) return -1;
  return static_cast<int>(syscall(SYS_renameat, -100, from, -100, to));
}
}
