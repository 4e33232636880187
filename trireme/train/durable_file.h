// Small files that are on disk when the call returns, and folders whose entries are.
#pragma once

#include <filesystem>
#include <string>

namespace trireme {

// Writes and syncs. Throws DataError that names the file and the bytes that it needed (a full disk among the
// causes).
void write_durable(const std::filesystem::path& file, const std::string& text);
// Copies and syncs; throws DataError likewise.
void copy_durable(const std::filesystem::path& from, const std::filesystem::path& to);
// Makes renames and new entries in a folder last. Throws DataError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace trireme
