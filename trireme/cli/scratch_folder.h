// A folder in the system's place for temporary files, removed at the end, that all ranks of this machine
// share.
#pragma once

#include <filesystem>

#include "trireme/train/agreement.h"

namespace trireme {

class ScratchFolder {
 public:
  // Rank 0 makes it; the others learn its name. Collective.
  ScratchFolder(int rank, Agreement& agreement);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool owner_;
};

}  // namespace trireme
