#include "trireme/comm/network_identity.h"

#include <array>
#include <unistd.h>

#include "trireme/base/machine_identity.h"

namespace trireme {

std::string network_identity() {
  const std::string boot = boot_id();
  std::array<char, 64> network{};
  const ssize_t size = ::readlink("/proc/self/ns/net", network.data(), network.size());
  // If one of them is unknown, ranks with the same machine name do not count as one machine.
  if (boot.empty() || size <= 0) return host_name() + " process " + std::to_string(::getpid());
  return boot + " " + std::string(network.data(), static_cast<size_t>(size));
}

}  // namespace trireme
