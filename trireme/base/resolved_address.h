// Resolves a host name to network addresses, and connects to one of them in a time.
#pragma once

#include <chrono>
#include <optional>
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

// Connects a socket that does not block: 0, or the error number of the connection, ETIMEDOUT of the system's own
// patience among them; none: the deadline has passed.
std::optional<int> connect_until(int descriptor, const ResolvedAddress& address,
                                 std::chrono::steady_clock::time_point deadline);

}  // namespace trireme
