// The network addresses that a name stands for.
#pragma once

#include <string>
#include <sys/socket.h>
#include <vector>

namespace trireme {

struct ResolvedAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Those of the older protocol first. Throws ConfigError when nobody knows the name.
std::vector<ResolvedAddress> resolve(const std::string& host, int port);

}  // namespace trireme
