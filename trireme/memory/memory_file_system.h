// Folders that look like a disk and are memory (tmpfs, ramfs): what is offloaded there stays where it was. No torch
// here.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trireme/memory/offload.h"

namespace trireme {

// "tmpfs" or "ramfs" where `folder` lies on one of these; none on other file systems, and where there is no such folder.
std::optional<std::string> memory_file_system(const std::filesystem::path& folder);

// What to tell a user whose offload to disk goes to such a folder of this machine; none where it does not.
std::optional<std::string> memory_for_disk_warning(const OffloadOptions& options);

}  // namespace trireme
