#include "trireme/base/resolved_address.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>

#include "trireme/base/poll_until.h"

namespace trireme {

std::string ResolvedAddress::digits() const {
  std::array<char, NI_MAXHOST> host{};
  // Of a peer that came by IPv4 to a socket of both protocols.
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
  if (v6->sin6_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
    return ::inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], host.data(), host.size());
  ::getnameinfo(generic(), size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return host.data();
}

std::vector<ResolvedAddress> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int reason = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (reason != 0)
    throw UnknownHost(cat("cannot find the machine ", host, ": ", ::gai_strerror(reason),
                          "; check --master_addr (MASTER_ADDR)"));
  std::vector<ResolvedAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    ResolvedAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  ::freeaddrinfo(found);
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const ResolvedAddress& one) { return one.generic()->sa_family == AF_INET; });
  return addresses;
}

std::optional<int> connect_until(int descriptor, const ResolvedAddress& address,
                                 std::chrono::steady_clock::time_point deadline) {
  if (::connect(descriptor, address.generic(), address.size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  const int ready = poll_until(descriptor, POLLOUT, deadline);
  if (ready < 0) return errno;
  if (ready == 0) return std::nullopt;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace trireme
