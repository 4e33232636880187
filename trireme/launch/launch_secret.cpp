#include "trireme/launch/launch_secret.h"

#include "trireme/base/error.h"
#include "trireme/base/secret_digits.h"
#include "trireme/base/sha256.h"

namespace trireme {

std::string launch_secret(const LaunchOptions& options) {
  if (!options.secret_file.empty()) return read_secret_file(options.secret_file);
  if (const auto given = secret_of_environment()) return given->digits;
  if (options.nnodes > 1)
    throw ConfigError(
        "launch: several machines need a secret that their launchers share. Make one, copy it to each "
        "machine, and give "
        "it to each launcher: (umask 077; openssl rand -hex 32 > run.secret), then --secret_file run.secret");
  return random_digits(32);
}

}  // namespace trireme
