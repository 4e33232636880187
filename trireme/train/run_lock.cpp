#include "trireme/train/run_lock.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/file.h>
#include <thread>
#include <unistd.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/file_error.h"
#include "trireme/base/json.h"
#include "trireme/base/machine_identity.h"
#include "trireme/base/make_folder.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text.data();
}

std::string text_of(int descriptor) {
  std::string text(4096, '\0');
  const ssize_t got = ::pread(descriptor, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

struct LockHolder {
  std::string host = "an unknown host";
  int64_t process = 0;
  std::string since = "an unknown time";
  std::string launch;
  std::string boot;
  int64_t ticks = 0;  // start_ticks

  std::string text() const { return cat("host ", host, ", process ", process, ", since ", since); }
};

LockHolder parse_holder(const std::string& text) {
  LockHolder holder;
  if (text.empty()) return holder;
  const std::string origin = kRunLockFile;
  try {
    const Json json = parse_json(text, origin);
    holder.host = quotation(text_value(json, "host", origin));
    holder.process = whole_number(json, "process", {}, origin);
    holder.since = quotation(text_value(json, "since", origin));
    holder.launch = text_value(json, "launch", origin, "");
    holder.boot = text_value(json, "boot", origin, "");
    holder.ticks = whole_number(json, "start_ticks", {}, origin, 0);
  } catch (const DataError&) {
    // The text may be half written or of another program: the lock counts, not its text.
  }
  return holder;
}

bool lives_here(const LockHolder& holder) {
  return holder.host == host_name() && holder.process > 0 && !holder.boot.empty() &&
         holder.boot == boot_id() && holder.ticks > 0 && holder.ticks == start_ticks(holder.process);
}

}  // namespace

std::string read_run_lock(const fs::path& output_dir) {
  const FileDescriptor file(::open((output_dir / kRunLockFile).c_str(), O_RDONLY | O_CLOEXEC));
  return file.is_open() ? text_of(file.get()) : "";
}

RunLock::RunLock(const fs::path& output_dir, const std::string& launch,
                 const std::function<void(const std::string&)>& note)
    : file_(output_dir / kRunLockFile) {
  constexpr double kNamelessSeconds = 2;      // a holder that begins or ends has no text for a moment
  constexpr double kSameLaunchSeconds = 120;  // NFS frees a dead machine's lock after 90 s
  make_folder(output_dir);
  lock_ = FileDescriptor(::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock_.is_open()) throw_file_error(file_.string() + ": cannot open to write", errno);
  const double begin = now_seconds();
  double named_seconds = begin;
  while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    const int why = errno;
    const std::string text = text_of(lock_.get());
    const LockHolder holder = parse_holder(text);
    if (why != EWOULDBLOCK && !lives_here(holder)) {
      if (holder.process > 0 && holder.host != host_name() && (launch.empty() || holder.launch != launch))
        note(cat("warning: ", output_dir.string(), " lies on a file system without locks (",
                 std::strerror(why), "); ", holder.text(),
                 " trained there last: make sure that it has ended"));
      break;
    }
    const bool same_launch = !launch.empty() && holder.launch == launch;
    const double now = now_seconds();
    if (!text.empty()) named_seconds = now;
    const bool waits = text.empty() ? now - named_seconds < kNamelessSeconds
                                    : same_launch && now - begin < kSameLaunchSeconds;
    if (!waits) {
      if (same_launch)
        throw SystemFault(cat(file_.string(), " is still locked by an earlier attempt of this launch (",
                              holder.text(), "): if that process is dead, remove the file"));
      throw ConfigError(cat(output_dir.string(), " is in use by another run (", holder.text(),
                            "): wait until it has ended, or choose another --output_dir"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const Json json = {{"host", host_name()},  {"process", ::getpid()},
                     {"since", time_text()}, {"launch", launch},
                     {"boot", boot_id()},    {"start_ticks", start_ticks(::getpid())}};
  text_ = json.dump() + "\n";
  // A process that finds the lock taken reads this. The lock holds also if this fails (a full disk).
  if (::ftruncate(lock_.get(), 0) != 0 ||
      ::pwrite(lock_.get(), text_.data(), text_.size(), 0) != static_cast<ssize_t>(text_.size()) ||
      (::fsync(lock_.get()) != 0 && errno != EINVAL)) {
    note(cat("warning: cannot write to ", file_.string(), ": ", std::strerror(errno)));
    text_.clear();
  }
}

RunLock::~RunLock() {
  // Without locks, another machine's run may have gone on and written its text.
  [[maybe_unused]] const bool emptied = text_of(lock_.get()) == text_ && ::ftruncate(lock_.get(), 0) == 0;
}

}  // namespace trireme
