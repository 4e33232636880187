// Makes a call on a file fail once, as a file system over the network does that is away for a while.
#pragma once

#include <string>

namespace trireme::testing {

enum class FileCall { read, rename, sync };

// While it lives, the first such call on a file whose path contains `part` fails with `error` (an errno). One at a
// time. Needs the library of file_operations.h.
class FailingFile {
 public:
  FailingFile(FileCall call, const std::string& part, int error);
  ~FailingFile();
  FailingFile& operator=(FailingFile&&) = delete;
  bool reached() const;
};

}  // namespace trireme::testing
