// What the file system says of a path. "It is not there" is an answer; every other error (permissions, EIO, ESTALE) is a
// DataError that names the path, so that what cannot be read never counts as empty.
#pragma once

#include <filesystem>
#include <vector>

namespace trireme {

bool is_there(const std::filesystem::path& path);
// As is_there, and true of a link that leads nowhere: whoever opens it says so.
bool is_name_taken(const std::filesystem::path& path);
// Sorted; none where the folder is not there.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);
// An open file that has no name any more: it was removed, and what is written to it is lost.
bool is_unlinked(int descriptor);

}  // namespace trireme
