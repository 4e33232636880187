#include "trireme/base/folder_entries.h"

#include <algorithm>
#include <sys/stat.h>
#include <system_error>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/base/file_error.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

bool means_absent(const std::error_code& error) {
  return error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
}

bool is_found(const fs::file_status& status, const fs::path& path, const std::error_code& error) {
  if (status.type() == fs::file_type::not_found) return false;
  if (error) throw_file_error(quotation(path.string()) + ": cannot be looked at", error.value());
  return true;
}

}  // namespace

bool is_there(const fs::path& path) {
  std::error_code error;
  return is_found(fs::status(path, error), path, error);
}

bool are_one(const fs::path& a, const fs::path& b) {
  std::error_code gone;
  return fs::equivalent(a, b, gone);
}

bool is_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return is_found(status, path, error) && fs::is_regular_file(status);
}

bool is_name_taken(const fs::path& path) {
  std::error_code error;
  return is_found(fs::symlink_status(path, error), path, error);
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (means_absent(error)) return all;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) all.push_back(entry->path());
  if (error) throw_file_error(folder.string() + ": cannot read the folder", error.value());
  std::sort(all.begin(), all.end());
  return all;
}

bool is_unlinked(int descriptor) {
  struct stat status = {};
  return ::fstat(descriptor, &status) != 0 || status.st_nlink == 0;
}

fs::path temporary_folder() {
  std::error_code error;
  fs::path folder = fs::temp_directory_path(error);
  if (error)
    throw ConfigError(cat("the folder for temporary files cannot be used: ", error.message(), "; TMPDIR is '",
                          quotation(environment("TMPDIR").value_or("")),
                          "', expected a folder that is there"));
  return folder;
}

}  // namespace trireme
