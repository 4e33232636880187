// Keeps one output stream of one rank in a file, byte for byte.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "trireme/base/file_descriptor.h"

namespace trireme {

// Appends to its file. If the file cannot be written, the launcher's stderr says so once and the log ends;
// the rank's output still goes where it goes without a log.
class RankLog {
 public:
  RankLog() = default;  // keeps nothing
  explicit RankLog(const std::filesystem::path& file);

  // Returns a warning; empty on success.
  std::string write(std::string_view bytes);

 private:
  std::filesystem::path file_;  // empty: the log has ended
  FileDescriptor descriptor_;
  int open_error_ = 0;  // an errno
};

}  // namespace trireme
