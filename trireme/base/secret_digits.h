// The secret of a run as the user and the launcher pass it: hexadecimal digits (docs/security.md).
#pragma once

#include <optional>
#include <string>
#include <sys/stat.h>
#include <sys/types.h>
#include <vector>

namespace trireme {

// Why the secret of `user`, a member of `groups`, must not be in a file with this `status`; empty if it may.
// It may if the user owns it and nobody else may use it, or if root owns it and one of the user's groups may
// read it, as Kubernetes mounts secrets.
std::string fault_of_secret_file(const struct stat& status, uid_t user, const std::vector<gid_t>& groups);

// The first line of a file without such a fault. Throws ConfigError.
std::string read_secret_file(const std::string& path);

struct SecretDigits {
  std::string digits;
  std::string variable;  // of the environment, for messages
};
// Of TRIREME_SECRET, else of the file that TRIREME_SECRET_FILE names. Throws ConfigError.
std::optional<SecretDigits> secret_of_environment();

}  // namespace trireme
