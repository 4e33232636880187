#include "trireme/launch/rank_log.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

RankLog::RankLog(const std::filesystem::path& file)
    : file_(file), descriptor_(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {}

std::string RankLog::write(std::string_view bytes) {
  while (!file_.empty() && !bytes.empty()) {
    const ssize_t written = ::write(descriptor_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int reason = errno;
      return cat("trireme launch: warning: cannot write ", std::exchange(file_, {}).string(), ": ",
                 std::strerror(reason), "; this log ends here, the run goes on\n");
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return "";
}

}  // namespace trireme
