#include "trireme/cli/scratch_folder.h"

namespace trireme {

ScratchFolder::ScratchFolder(int rank, Agreement& agreement) {
  const std::filesystem::path prefix = std::filesystem::temp_directory_path() / "trireme-scratch-";
  agreement.all_or_none("making a folder for temporary files", [&] {
    if (rank == 0) folder_.emplace(prefix, mode_t{0700});
  });
  path_ = OwnedFolder::name_of(prefix, agreement.of_rank_0(folder_ ? folder_->number() : 0));
}

}  // namespace trireme
