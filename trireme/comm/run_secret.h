// The secret of a run, which each rank proves before it may join (docs/security.md).
#pragma once

#include <optional>
#include <string>

namespace trireme {

struct RunSecret {
  std::string bytes;
  std::string origin = "no secret";  // "TRIREME_SECRET": to be told; never the bytes
  // Made of what ranks share anyway, such as a job's number, and not of what only they were given.
  bool guessable = true;
};

// From the environment: TRIREME_SECRET, else the file that TRIREME_SECRET_FILE names (secret_digits.h), else nothing.
// Throws ConfigError.
std::optional<RunSecret> given_secret();

// Of `shared`, which the launcher that gave all ranks their numbers told each of them in the variable `origin`.
RunSecret derived_secret(const std::string& origin, const std::string& shared);

}  // namespace trireme
