// The nameless file that a process has open in a folder, seen from outside the code that made it.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace trireme::testing {

// /proc/<process>/fd/<number>, which can be given to stat() and open().
inline std::filesystem::path open_file_in(const std::filesystem::path& folder, pid_t process = ::getpid()) {
  const auto descriptors = std::filesystem::path("/proc") / std::to_string(process) / "fd";
  const std::string prefix = (std::filesystem::canonical(folder) / "").string();
  for (const auto& entry : std::filesystem::directory_iterator(descriptors)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with(prefix)) return entry.path();
  }
  throw std::runtime_error("the process has no file open in " + folder.string());
}

inline struct stat status_of(const std::filesystem::path& file) {
  struct stat status = {};
  if (::stat(file.c_str(), &status) != 0) throw std::runtime_error("cannot stat " + file.string());
  return status;
}

inline int64_t bytes_on_disk(const std::filesystem::path& file) {
  return status_of(file).st_blocks * 512;
}

}  // namespace trireme::testing
