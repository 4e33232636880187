// A folder for temporary files that all ranks of this machine share, in the system's temporary folder
// (TMPDIR). Removed at the end (owned_folder.h tells when, if the process is killed).
#pragma once

#include <filesystem>
#include <optional>

#include "trireme/cli/owned_folder.h"
#include "trireme/comm/agreement.h"

namespace trireme {

class ScratchFolder {
 public:
  // Rank 0 makes it; the others learn its name. Collective.
  ScratchFolder(int rank, Agreement& agreement);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::optional<OwnedFolder> folder_;  // rank 0
  std::filesystem::path path_;
};

}  // namespace trireme
