// Which calls to the kernel a piece of code made on files, in order: this library defines write, pread, fsync,
// fdatasync and rename for the whole test binary (shared libraries such as libstdc++ included), notes them,
// and makes the system call.
#pragma once

#include <string>
#include <vector>

namespace trireme::testing {

// Records while it lives, on all threads; one at a time. "write PATH" (once where it repeats), "sync PATH",
// "rename FROM TO".
class FileOperations {
 public:
  FileOperations();
  ~FileOperations();
  FileOperations& operator=(FileOperations&&) = delete;

  std::vector<std::string> recorded() const;
  // With `folder` cut off the paths (the folder itself is "."), and only what touches it.
  std::vector<std::string> in(const std::string& folder) const;
};

}  // namespace trireme::testing
