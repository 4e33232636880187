// The secret by which the processes of one run know each other (docs/security.md).
#pragma once

#include <string>

#include "trireme/launch/launch.h"

namespace trireme {

// Hexadecimal digits: of --secret_file, of TRIREME_SECRET or the file that TRIREME_SECRET_FILE names, else, on one
// machine, new ones. Throws ConfigError: several machines and none given, a file that others may read, no digits.
std::string run_secret(const LaunchOptions& options);

// 2 digits a byte, of random bytes of the system; 32 bytes at most.
std::string random_digits(int bytes);

}  // namespace trireme
