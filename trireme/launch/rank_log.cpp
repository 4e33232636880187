#include "trireme/launch/rank_log.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

RankLog::RankLog(const std::filesystem::path& file)
    : file_(file),
      descriptor_(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)),
      given_up_(false) {}

RankLog::RankLog(RankLog&& other) noexcept
    : file_(std::move(other.file_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      given_up_(std::exchange(other.given_up_, true)) {}

RankLog::~RankLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string RankLog::give_up() {
  const int reason = errno;
  given_up_ = true;
  return cat("trireme launch: warning: cannot write ", file_.string(), ": ", std::strerror(reason),
             "; this log ends here, the run goes on\n");
}

std::string RankLog::write(std::string_view bytes) {
  if (given_up_) return "";
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return give_up();
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return "";
}

}  // namespace trireme
