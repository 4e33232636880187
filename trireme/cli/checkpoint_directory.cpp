#include "trireme/cli/checkpoint_directory.h"

#include <system_error>

#include "trireme/base/error.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/run_directory.h"

namespace fs = std::filesystem;

namespace trireme {

fs::path find_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path / "manifest.json", ignored)) {
    verify_checkpoint(path);
    return path;
  }
  const RunDirectory run(path);
  std::string problems;
  if (const auto found = run.newest_valid([&](const CheckpointEntry& /*entry*/, const std::string& problem) {
        problems += "\n  " + problem;
      }))
    return found->path;
  if (!problems.empty())
    throw DataError(cat(path.string(), ": no checkpoint of this run is whole:", problems));
  throw ConfigError(cat(path.string(),
                        " is neither a checkpoint (it has no manifest.json) nor a run's folder with ",
                        "checkpoints/step-N in it"));
}

}  // namespace trireme
