#include "trireme/launch/listening_socket.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "trireme/base/error.h"

namespace trireme {

ListeningSocket::ListeningSocket(int port, bool loopback) {
  descriptor_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor_ < 0) throw ConfigError(cat("cannot open a TCP socket: ", std::strerror(errno)));
  const int yes = 1;
  ::setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  // A queue is open from here on: ranks may connect before rank 0 is ready to answer.
  if (::bind(descriptor_, generic, size) != 0 || ::listen(descriptor_, SOMAXCONN) != 0 ||
      ::getsockname(descriptor_, generic, &size) != 0) {
    const int reason = errno;
    close();
    throw ConfigError(cat("cannot listen at TCP port ", port, ": ", std::strerror(reason),
                          port == 0 ? "" : "; choose another --master_port"));
  }
  port_ = ntohs(address.sin_port);
}

void ListeningSocket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace trireme
