// A folder for files of this process alone, under a name that nobody can foretell. It goes with the object; of a process that
// was killed, with the next one that makes a folder of the same prefix: a folder whose maker lives is locked (flock).
#pragma once

#include <cstdint>
#include <filesystem>
#include <sys/types.h>

namespace trireme {

class OwnedFolder {
 public:
  // Makes PREFIX followed by 16 random hexadecimal digits, with `mode` less the process's umask, and removes such folders of
  // this user that nobody holds any more. Throws DataError where the system does not make it.
  OwnedFolder(const std::filesystem::path& prefix, mode_t mode);
  ~OwnedFolder();
  OwnedFolder& operator=(OwnedFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t number() const { return number_; }  // of the digits
  static std::filesystem::path name_of(const std::filesystem::path& prefix, int64_t number);

 private:
  bool make(const std::filesystem::path& prefix, mode_t mode);

  int64_t number_ = 0;
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace trireme
