// Which checkpoint a path means.
#pragma once

#include <filesystem>

namespace trireme {

// A checkpoint's folder is itself, after its files were verified; a run's folder means its newest whole
// checkpoint. Throws ConfigError: neither; DataError: the checkpoint is damaged.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace trireme
