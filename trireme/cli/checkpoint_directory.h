// Finds the checkpoint that a path means.
#pragma once

#include <filesystem>

namespace trireme {

// A checkpoint's folder means that checkpoint, after its files are verified. A run's folder means its newest
// whole checkpoint. Throws ConfigError for any other path, DataError when the checkpoint is damaged.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace trireme
