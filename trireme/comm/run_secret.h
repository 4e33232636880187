// The secret of a run, which each rank proves before it may join (docs/security.md).
#pragma once

#include <optional>
#include <string>

namespace trireme {

struct RunSecret {
  std::string bytes;
  std::string origin = "no secret";  // "TRIREME_SECRET": for messages; never the bytes
  // Derived from data that others may know, such as a job's number, not from a secret that only the ranks
  // got.
  bool guessable = true;
};

// That of the environment (secret_digits.h), if there is one. Throws ConfigError.
std::optional<RunSecret> given_secret();

// A secret derived from `shared`, which the launcher of the ranks gave each of them in the variable `origin`.
RunSecret derived_secret(const std::string& origin, const std::string& shared);

}  // namespace trireme
