// The secret of a run as the user and the launcher hand it over: hexadecimal digits (docs/security.md).
#pragma once

#include <string>
#include <sys/stat.h>
#include <sys/types.h>
#include <vector>

namespace trireme {

// Returns the digits, at least 128 bits of them. Throws ConfigError that names `origin` and never quotes the secret.
std::string checked_secret_digits(const std::string& digits, const std::string& origin);

// Why the secret of `user`, who is in `groups`, may not lie in a file like this; empty: it may. It is the user's and no
// one else may use it, or it is root's and one of the user's groups may read it, as Kubernetes mounts secrets.
std::string fault_of_secret_file(const struct stat& status, uid_t user, const std::vector<gid_t>& groups);

// The first line of such a file. Throws ConfigError.
std::string read_secret_file(const std::string& path);

}  // namespace trireme
