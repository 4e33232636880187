// A file without a name: nobody can open it, and the system takes its blocks back when the process ends,
// however it ends.
#pragma once

#include <filesystem>

#include "trireme/base/file_descriptor.h"

namespace trireme {

enum class NamelessCreation {
  automatic,  // O_TMPFILE; where the file system has none, unlinked
  unlinked,   // made with a name that is removed at once
};

// Open for reading and writing, empty. ConfigError when the folder is missing or cannot be written.
FileDescriptor open_nameless_file(const std::filesystem::path& folder,
                                  NamelessCreation creation = NamelessCreation::automatic);

}  // namespace trireme
