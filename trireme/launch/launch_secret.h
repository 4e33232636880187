// The secret by which the processes of one run recognise each other (docs/security.md).
#pragma once

#include <string>

#include "trireme/launch/launch.h"

namespace trireme {

// Hexadecimal digits from --secret_file, else those of the environment (base/secret_digits.h); else, on one
// machine, new ones. Throws ConfigError for several machines without a secret, a file that others may
// read, or text that is no digits.
std::string launch_secret(const LaunchOptions& options);

}  // namespace trireme
