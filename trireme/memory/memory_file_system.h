// Detects folders that are memory and not a disk (tmpfs, ramfs): offloading there frees no memory. No torch.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trireme/memory/offload.h"

namespace trireme {

// Returns "tmpfs" or "ramfs" where `folder` lies on one; nullopt elsewhere and for a missing folder.
std::optional<std::string> memory_file_system(const std::filesystem::path& folder);

// A warning for the user if offload to disk goes to such a folder of this machine, else nullopt.
std::optional<std::string> memory_for_disk_warning(const OffloadOptions& options);

}  // namespace trireme
