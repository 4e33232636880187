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
constexpr std::array<int, 3> kNoRoom{ENOSPC, EDQUOT, EFBIG};

}  // namespace

void throw_file_error(const std::string& what, int error, const std::string& after) {
  const char* const no_room = contains(kNoRoom, error) ? "; free some space, or choose another folder" : "";
  const std::string message = cat(what, ": ", std::strerror(error), no_room, after);
  if (contains(kAway, error))
    throw SystemFault(message + "; its file system is away: a restart may find it again");
  throw DataError(message);
}

}  // namespace trireme
