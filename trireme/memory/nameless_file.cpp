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

FileDescriptor open_unlinked(const std::filesystem::path& folder) {
  std::string name = (folder / ".trireme-offload-XXXXXX").string();
  FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.is_open()) ::unlink(name.c_str());
  return file;
}

// Errors of open() where the kernel or the file system does not know O_TMPFILE.
bool no_tmpfile(int error) {
  return error == EOPNOTSUPP || error == EISDIR || error == EINVAL;
}

}  // namespace

FileDescriptor open_nameless_file(const std::filesystem::path& folder, NamelessCreation creation) {
  FileDescriptor file;
  // O_EXCL: nobody may give it a name later.
  if (creation == NamelessCreation::automatic)
    file = FileDescriptor(::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (!file.is_open() && (creation == NamelessCreation::unlinked || no_tmpfile(errno)))
    file = open_unlinked(folder);
  if (!file.is_open())
    throw ConfigError(cat("cannot make a file for offload in ", folder.string(), ": ", std::strerror(errno),
                          "; --offload_dir must be an existing folder that this user may write to"));
  return file;
}

}  // namespace trireme
