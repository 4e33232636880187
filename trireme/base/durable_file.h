// Writes small files and folder entries so that they are on disk when the call returns.
//
//   replace_file    text -> FILE.partial, synced -> renamed to FILE -> folder synced
//
// If the process is killed or the disk is full, FILE still holds the complete old text or the complete new
// text.
#pragma once

#include <filesystem>
#include <string>

namespace trireme {

// Replaces or creates a file; no other function does. On failure, for example on a full disk, it removes
// FILE.partial and throws a DataError with the file name and the bytes needed.
void replace_file(const std::filesystem::path& file, const std::string& text);
// Writes and syncs the file directly, without FILE.partial: for folders that are not published yet. Throws
// the same DataError.
void write_durable(const std::filesystem::path& file, const std::string& text);
// Copies and syncs a file. Throws the same DataError.
void copy_durable(const std::filesystem::path& from, const std::filesystem::path& to);
// Renames a synced file and makes the new name durable. Throws DataError.
void publish_file(const std::filesystem::path& from, const std::filesystem::path& to);
// Makes renames and new entries in a folder durable ("": the current folder). Throws DataError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace trireme
