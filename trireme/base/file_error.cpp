#include "trireme/base/file_error.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

// NFS (ESTALE, ETIMEDOUT), Lustre (ESHUTDOWN), FUSE (ENOTCONN).
constexpr std::array<int, 8> kAway{ESTALE,    ETIMEDOUT,    ESHUTDOWN, ENOTCONN,
                                   EHOSTDOWN, EHOSTUNREACH, ENETDOWN,  ENETUNREACH};
constexpr std::array<int, 2> kNoRoom{ENOSPC, EDQUOT};

const char* what_to_do(int error) {
  if (contains(kNoRoom, error)) return "; free some space, or choose another folder";
  return error == EFBIG ? "; raise the limit of a file's size (ulimit -f)" : "";
}

}  // namespace

void throw_file_error(const std::string& what, int error, const std::string& after) {
  const std::string message = cat(what, ": ", std::strerror(error), what_to_do(error), after);
  if (contains(kAway, error))
    throw SystemFault(message + "; its file system is away: a restart may find it again");
  throw DataError(message);
}

}  // namespace trireme
