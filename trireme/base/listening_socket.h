// The socket at which the ranks, or the launchers of several machines, meet. The launcher opens the socket
// and rank 0 inherits it, so no port is guessed and no other process can take the port meanwhile. If the
// ranks were started by hand, rank 0 opens the socket.
#pragma once

#include <string>

#include "trireme/base/file_descriptor.h"

namespace trireme {

// 127.0.0.0/8, ::1 or localhost: only this machine reaches such an address.
bool is_loopback(const std::string& host);

// Of a socket of TCP that has an address.
int port_of(int descriptor);

// What to do with an address that no interface of this machine has: only other machines know this one by it.
// A host name that is loopback on this machine, as Debian sets it, counts too: on other machines it is
// another address.
enum class ForeignAddress { refuse, all_interfaces };

class ListeningSocket {
 public:
  // Listens at `port` (0: a free one) of the interface that has `address`, a name or number. Throws
  // ConfigError.
  ListeningSocket(const std::string& address, int port, ForeignAddress foreign = ForeignAddress::refuse);

  int descriptor() const { return descriptor_.get(); }  // closed on exec, unless the child says otherwise
  int port() const { return port_; }
  // The caller becomes the owner of the descriptor.
  int release() { return descriptor_.release(); }

 private:
  FileDescriptor descriptor_;
  int port_ = 0;
};

}  // namespace trireme
