// A file that grows by whole records, each handed to the system at once. If it is removed, it is begun anew.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/file_descriptor.h"

namespace trireme {

// Appends all of `bytes` to a file that was opened to append, or nothing: what the system took before it
// refused the rest is cut off again, for it would spoil the next record. Returns an empty text or the
// problem.
std::string append_whole(int descriptor, std::string_view bytes);

class AppendedFile {
 public:
  // Opens the file to append, and makes it where it is missing. Returns an empty text or the problem.
  using Open = std::function<std::string(FileDescriptor& file)>;
  // `removed`: what write returns of a file that was removed; a check for that runs every `look_seconds`.
  AppendedFile(Open open, std::string removed, double look_seconds)
      : open_(std::move(open)), removed_(std::move(removed)), look_(look_seconds) {}

  // The first write opens a file that was not opened before.
  std::string open() { return open_(file_); }
  // Returns an empty text; or the problem (the file still holds whole records, and the next call tries again);
  // or that the file was removed and is begun anew with these bytes.
  std::string write(std::string_view bytes);

 private:
  Open open_;
  std::string removed_;
  NowAndThen look_;
  FileDescriptor file_;
  bool was_removed_ = false;  // and this is not told yet
};

}  // namespace trireme
