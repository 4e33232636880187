// Queries about paths and folders. A missing path is a normal result. Every other error (permissions, EIO,
// ESTALE) throws a DataError that names the path, so an unreadable folder never counts as empty.
#pragma once

#include <filesystem>
#include <vector>

namespace trireme {

bool is_there(const std::filesystem::path& path);
// True for a regular file, also by a link. As all here, throws DataError where the system cannot tell.
bool is_file(const std::filesystem::path& path);
// Like is_there(), but also true for a dangling symbolic link: opening the link then reports the error.
bool is_name_taken(const std::filesystem::path& path);
// Whether both names lead to one file or folder. Throws nothing: false where one is not there, too.
bool are_one(const std::filesystem::path& a, const std::filesystem::path& b);
// Sorted; empty if the folder does not exist.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);
// Whether data written to an open file is lost: the file was removed, or is no longer open or known (ESTALE).
bool is_unlinked(int descriptor);
// The folder for temporary files: TMPDIR, else /tmp. Throws ConfigError that names it if it is no folder.
std::filesystem::path temporary_folder();

}  // namespace trireme
