#include "trireme/base/secret_digits.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "trireme/base/contains.h"
#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"

namespace trireme {
namespace {

std::vector<gid_t> groups_of_this_process() {
  std::vector<gid_t> groups(static_cast<size_t>(std::max(::getgroups(0, nullptr), 0)));
  groups.resize(
      static_cast<size_t>(std::max(::getgroups(static_cast<int>(groups.size()), groups.data()), 0)));
  groups.push_back(::getegid());
  return groups;
}

// `digits` must hold at least 128 bits; the message never quotes them.
std::string checked_secret_digits(const std::string& digits, const std::string& origin) {
  constexpr size_t kLeastDigits = 32;
  const bool whole = digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (!whole || digits.size() < kLeastDigits || digits.size() % 2 != 0)
    throw ConfigError(cat(origin, " holds ", digits.size(), " characters; expected ", kLeastDigits,
                          " or more hexadecimal digits, an even number, such as openssl rand -hex 32 makes"));
  return digits;
}

}  // namespace

std::string fault_of_secret_file(const struct stat& status, uid_t user, const std::vector<gid_t>& groups) {
  if (!S_ISREG(status.st_mode)) return "is no file";
  if ((status.st_mode & (S_IWGRP | S_IRWXO)) != 0)
    return "may be used by others than its owner: chmod 600 it";
  const bool of_our_group = contains(groups, status.st_gid);
  if ((status.st_mode & S_IRGRP) != 0) {
    if (status.st_uid == 0 && of_our_group) return "";
    return "may be read by others than its owner: chmod 600 it";
  }
  if (status.st_uid != user)
    return cat("belongs to the user ", status.st_uid, ", and this process is of the user ", user,
               ": copy it to a file of this user");
  return "";
}

std::string read_secret_file(const std::string& path) {
  // A pipe must not block.
  const FileDescriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!in.is_open()) throw ConfigError(cat("cannot read the secret ", path, ": ", std::strerror(errno)));
  const auto refuse = [&](const std::string& fault) {
    throw ConfigError(cat("the secret ", path, " ", fault));
  };
  struct stat status = {};
  if (::fstat(in.get(), &status) != 0) refuse(std::strerror(errno));
  const std::string fault = fault_of_secret_file(status, ::geteuid(), groups_of_this_process());
  if (!fault.empty()) refuse(fault);
  constexpr size_t kMostDigits = 4096;
  std::string text(kMostDigits, '\0');
  const ssize_t got = ::read(in.get(), text.data(), text.size());
  if (got < 0) refuse(cat("cannot be read: ", std::strerror(errno)));
  text.resize(static_cast<size_t>(got));
  return checked_secret_digits(text.substr(0, text.find_first_of("\r\n")), cat("the secret ", path));
}

std::optional<SecretDigits> secret_of_environment() {
  const char *const secret = "TRIREME_SECRET", *const secret_file = "TRIREME_SECRET_FILE";
  if (const auto digits = environment(secret))
    return SecretDigits{checked_secret_digits(*digits, cat("environment variable ", secret)), secret};
  if (const auto file = environment(secret_file)) return SecretDigits{read_secret_file(*file), secret_file};
  return std::nullopt;
}

}  // namespace trireme
