// How the folder of a training run is told from others, by two names that every run makes there before it reads
// its data.
#pragma once

#include <filesystem>
#include <system_error>

namespace trireme {

inline constexpr const char* kRunLockFile = "run.lock";           // train/run_lock.h
inline constexpr const char* kCheckpointsFolder = "checkpoints";  // train/run_directory.h

// False for a folder at which the system cannot look.
inline bool is_run_folder(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::is_regular_file(folder / kRunLockFile, error) &&
         std::filesystem::is_directory(folder / kCheckpointsFolder, error);
}

}  // namespace trireme
