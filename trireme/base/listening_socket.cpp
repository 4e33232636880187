#include "trireme/base/listening_socket.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>

#include "trireme/base/error.h"
#include "trireme/base/resolved_address.h"

namespace trireme {
namespace {

// Returns a listening descriptor, or none with errno. The system queues connections from then on: ranks may
// connect before rank 0 is ready to answer.
FileDescriptor listen_at(const sockaddr* address, socklen_t size) {
  FileDescriptor made(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!made.is_open()) return made;
  const int yes = 1;
  ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const int no = 0;  // an address of IPv6 may stand for those of IPv4 too
  if (address->sa_family == AF_INET6) ::setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (::bind(made.get(), address, size) != 0 || ::listen(made.get(), SOMAXCONN) != 0) made.close();
  return made;
}

// By either protocol; by IPv4 alone where the system has no IPv6.
FileDescriptor listen_at_all(int port) {
  sockaddr_in6 both{};
  both.sin6_family = AF_INET6;
  both.sin6_port = htons(static_cast<uint16_t>(port));
  both.sin6_addr = in6addr_any;
  FileDescriptor made = listen_at(reinterpret_cast<const sockaddr*>(&both), sizeof both);
  if (made.is_open() || errno == EADDRINUSE) return made;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  return listen_at(reinterpret_cast<const sockaddr*>(&any), sizeof any);
}

}  // namespace

int port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw InternalError("a listening socket has no address");
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

bool is_loopback(const std::string& host) {
  in_addr v4{};
  return host == "localhost" || host == "::1" ||
         (::inet_pton(AF_INET, host.c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

ListeningSocket::ListeningSocket(const std::string& address, int port, ForeignAddress foreign) {
  bool unowned = true;  // no interface of this machine has the address
  for (const ResolvedAddress& one : resolve(address, port)) {
    if (foreign == ForeignAddress::all_interfaces && !is_loopback(address) && is_loopback(one.digits()))
      continue;
    descriptor_ = listen_at(one.generic(), one.size);
    if (descriptor_.is_open()) break;
    if (errno != EADDRNOTAVAIL) unowned = false;
    if (errno == EADDRINUSE) break;
  }
  if (!descriptor_.is_open() && unowned && foreign == ForeignAddress::all_interfaces)
    descriptor_ = listen_at_all(port);
  if (!descriptor_.is_open())
    throw ConfigError(cat("cannot listen at TCP port ", port, " of ", address, ": ", std::strerror(errno),
                          unowned     ? "; --master_addr is no address of this machine"
                          : port == 0 ? ""
                                      : "; choose another --master_port (MASTER_PORT)"));
  port_ = port_of(descriptor());
}

}  // namespace trireme
