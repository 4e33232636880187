// The network addresses that a name stands for.
#pragma once

#include <chrono>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

// Nobody knows the name now. A cluster's name server may learn it a little later.
class UnknownHost : public ConfigError {
 public:
  using ConfigError::ConfigError;
};
// So long a name is asked for again.
constexpr std::chrono::seconds kTimeForAName(60);

struct ResolvedAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Those of the older protocol first. Throws UnknownHost.
std::vector<ResolvedAddress> resolve(const std::string& host, int port);

}  // namespace trireme
