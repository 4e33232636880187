// Resolves a host name to network addresses.
#pragma once

#include <chrono>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

// The name is unknown. A cluster's name server may learn it a little later.
class UnknownHost : public ConfigError {
 public:
  using ConfigError::ConfigError;
};
// An unknown name is looked up again for this long.
constexpr std::chrono::seconds kTimeForAName(60);

struct ResolvedAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string digits() const;  // "10.0.0.7"; empty: the system cannot tell
};

// IPv4 addresses come first. Throws UnknownHost.
std::vector<ResolvedAddress> resolve(const std::string& host, int port);

}  // namespace trireme
