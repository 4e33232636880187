#include "trireme/memory/nameless_file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

int open_unlinked(const std::filesystem::path& folder) {
  std::string name = (folder / ".trireme-offload-XXXXXX").string();
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor >= 0) ::unlink(name.c_str());
  return descriptor;
}

// Errors of open() where the kernel or the file system does not know O_TMPFILE.
bool no_tmpfile(int error) {
  return error == EOPNOTSUPP || error == EISDIR || error == EINVAL;
}

}  // namespace

NamelessFile::NamelessFile(const std::filesystem::path& folder, Creation creation) {
  if (creation == Creation::automatic) {
    // O_EXCL: nobody may give it a name later.
    descriptor_ = ::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (descriptor_ >= 0) return;
  }
  if (creation == Creation::unlinked || no_tmpfile(errno)) descriptor_ = open_unlinked(folder);
  if (descriptor_ < 0)
    throw ConfigError(cat("cannot make a file for offload in ", folder.string(), ": ", std::strerror(errno),
                          "; --offload_dir must be an existing folder that this user may write to"));
}

NamelessFile::~NamelessFile() {
  ::close(descriptor_);
}

}  // namespace trireme
