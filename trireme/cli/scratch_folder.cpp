#include "trireme/cli/scratch_folder.h"

#include <system_error>
#include <unistd.h>

#include "trireme/base/error.h"

namespace trireme {

ScratchFolder::ScratchFolder(int rank, Agreement& agreement) : owner_(rank == 0) {
  const int64_t number = agreement.of_rank_0(::getpid());
  path_ = std::filesystem::temp_directory_path() / cat("trireme-", number);
  agreement.all_or_none(cat("making ", path_.string()), [&] {
    std::error_code error;
    if (owner_) std::filesystem::create_directories(path_, error);
    if (error) throw DataError(cat(path_.string(), ": cannot make the folder: ", error.message()));
  });
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (owner_) std::filesystem::remove_all(path_, ignored);
}

}  // namespace trireme
