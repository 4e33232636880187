// A folder for files of this process alone, under an unpredictable name. The destructor removes it. If the
// process was killed, the next process that makes a folder of the same prefix removes it. A folder whose
// maker lives is locked (flock).
#pragma once

#include <cstdint>
#include <filesystem>
#include <sys/types.h>

#include "trireme/base/file_descriptor.h"

namespace trireme {

class OwnedFolder {
 public:
  // Makes PREFIX followed by 16 random hexadecimal digits, with `mode` less the process's umask. Removes such
  // folders of this user that no process holds. Throws DataError where the system does not make the folder.
  OwnedFolder(const std::filesystem::path& prefix, mode_t mode);
  ~OwnedFolder();
  OwnedFolder& operator=(OwnedFolder&&) = delete;

  // Gives the folder another name, under which it stays. Throws DataError, and it stays as it is.
  void keep_as(const std::filesystem::path& name);

  const std::filesystem::path& path() const { return path_; }
  int64_t number() const { return number_; }  // of the digits
  static std::filesystem::path name_of(const std::filesystem::path& prefix, int64_t number);

 private:
  bool make(const std::filesystem::path& prefix, mode_t mode);

  int64_t number_ = 0;
  std::filesystem::path path_;
  bool is_kept_ = false;
  FileDescriptor lock_;
};

}  // namespace trireme
