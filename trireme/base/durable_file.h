// Small files that are on disk when the call returns, and folders whose entries are.
//
//   replace_file    text -> FILE.partial, synced -> renamed to FILE -> folder synced
//
// After a kill or a full disk at any moment FILE holds the old text or the new one, whole.
#pragma once

#include <filesystem>
#include <string>

namespace trireme {

// The one function that replaces a file, or makes it. FILE.partial is removed where this fails. Throws DataError that names the
// file and the bytes that it needed (a full disk among the causes).
void replace_file(const std::filesystem::path& file, const std::string& text);
// Writes and syncs, in place: for a file in a folder that is not published yet. Throws DataError likewise.
void write_durable(const std::filesystem::path& file, const std::string& text);
// Copies and syncs; throws DataError likewise.
void copy_durable(const std::filesystem::path& from, const std::filesystem::path& to);
// Gives a synced file its name, and makes the name last. Throws DataError.
void publish_file(const std::filesystem::path& from, const std::filesystem::path& to);
// Makes renames and new entries in a folder last ("": the current one). Throws DataError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace trireme
