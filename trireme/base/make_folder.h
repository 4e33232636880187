// The folder that a file is about to be written into.
#pragma once

#include <filesystem>
#include <string>

namespace trireme {

// Makes the folder and those above it, where they are not there. Throws as throw_file_error does, and names it.
void make_folder(const std::filesystem::path& folder);
// The same for one that the user asked for by `flag` ("--output "): throws ConfigError.
void make_asked_folder(const std::filesystem::path& folder, const std::string& flag = "");

}  // namespace trireme
