#include "trireme/launch/rank_log.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/write_all.h"

namespace trireme {

RankLog::RankLog(const std::filesystem::path& file)
    : file_(file),
      descriptor_(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)),
      open_error_(descriptor_.is_open() ? 0 : errno) {}

std::string RankLog::write(std::string_view bytes) {
  if (file_.empty()) return "";
  const int error =
      open_error_ != 0 ? open_error_ : write_all(descriptor_.get(), bytes.data(), bytes.size()).error;
  if (error == 0) return "";
  return cat("trireme launch: warning: cannot write ", std::exchange(file_, {}).string(), ": ",
             std::strerror(error), "; this log ends here, the run goes on\n");
}

}  // namespace trireme
