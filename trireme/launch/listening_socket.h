// The socket at which the ranks will meet. The launcher opens it and rank 0 inherits it, so that no port is
// guessed and none is lost between choosing it and using it.
#pragma once

#include <string>

namespace trireme {

class ListeningSocket {
 public:
  // Listens at `port` (0: a free one) on the loopback interface, or on every interface. Throws ConfigError.
  ListeningSocket(int port, bool loopback);
  ~ListeningSocket() { close(); }
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  int descriptor() const { return descriptor_; }  // closed on exec, unless the child says otherwise
  int port() const { return port_; }
  void close();

 private:
  int descriptor_ = -1;
  int port_ = 0;
};

}  // namespace trireme
