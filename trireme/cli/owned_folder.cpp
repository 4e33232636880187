#include "trireme/cli/owned_folder.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <random>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/file_error.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr size_t kDigits = 16;

int64_t random_number() {
  std::random_device random;
  const uint64_t bits = (static_cast<uint64_t>(random()) << 32U) | random();
  return static_cast<int64_t>(bits >> 1U);
}

// Holds the folder's lock; not open if another process holds it or this user has no such folder.
FileDescriptor lock_folder(const fs::path& folder) {
  FileDescriptor lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (::fstat(lock.get(), &status) == 0 && status.st_uid == ::geteuid() &&
      ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0)
    return lock;
  return FileDescriptor();
}

bool is_digits(const std::string& text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

void remove_abandoned(const fs::path& prefix) {
  std::error_code error;
  const std::string name = prefix.filename().string();
  const fs::path parent = prefix.has_parent_path() ? prefix.parent_path() : fs::path(".");
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    const std::string other = entry->path().filename().string();
    if (!other.starts_with(name) || !is_digits(other.substr(name.size()))) continue;
    const FileDescriptor lock = lock_folder(entry->path());
    if (!lock.is_open()) continue;
    std::error_code ignored;
    fs::remove_all(entry->path(), ignored);
  }
}

}  // namespace

fs::path OwnedFolder::name_of(const fs::path& prefix, int64_t number) {
  std::array<char, kDigits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(number));
  return prefix.string() + digits.data();
}

bool OwnedFolder::make(const fs::path& prefix, mode_t mode) {
  number_ = random_number();
  path_ = name_of(prefix, number_);
  if (::mkdir(path_.c_str(), mode) != 0) {
    if (errno == EEXIST) return false;
    throw_file_error(cat(path_.string(), ": the folder cannot be made"), errno);
  }
  lock_ = lock_folder(path_);
  struct stat held {
  }, named{};
  const bool ours = lock_.is_open() && ::fstat(lock_.get(), &held) == 0 &&
                    ::stat(path_.c_str(), &named) == 0 && held.st_ino == named.st_ino;
  if (ours) return true;
  // Another process found the folder before it was locked, and removes it; or this file system has no locks.
  lock_.close();
  std::error_code error;
  return fs::exists(path_, error);
}

OwnedFolder::OwnedFolder(const fs::path& prefix, mode_t mode) {
  remove_abandoned(prefix);
  while (!make(prefix, mode)) {
  }
}

void OwnedFolder::keep_as(const fs::path& name) {
  is_kept_ = true;
  if (::rename(path_.c_str(), name.c_str()) != 0)
    throw_file_error(cat(path_.string(), ": the folder cannot take the name ", name.string()), errno,
                     "; move it before the next such command removes it");
  path_ = name;
}

OwnedFolder::~OwnedFolder() {
  std::error_code ignored;
  if (!is_kept_) fs::remove_all(path_, ignored);
}

}  // namespace trireme
