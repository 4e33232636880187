// The socket at which the ranks will meet, or the launchers of several machines. The launcher opens it and rank 0
// inherits it, so that no port is guessed and none is lost between choosing it and using it; of ranks that were started
// by hand, rank 0 opens it.
#pragma once

#include <string>

namespace trireme {

// 127.0.0.0/8, ::1 or localhost: this machine alone reaches it.
bool is_loopback(const std::string& host);

// What to do with an address that no interface of this machine has: another name of it, seen from outside. A machine's
// name that stands for loopback here, as Debian sets it, stands for another address elsewhere: it counts as such.
enum class ForeignAddress { refuse, all_interfaces };

class ListeningSocket {
 public:
  // Listens at `port` (0: a free one) of the interface that has `address`, a name or number. Throws ConfigError.
  ListeningSocket(const std::string& address, int port, ForeignAddress foreign = ForeignAddress::refuse);
  ~ListeningSocket() { close(); }
  ListeningSocket& operator=(ListeningSocket&&) = delete;

  int descriptor() const { return descriptor_; }  // closed on exec, unless the child says otherwise
  int port() const { return port_; }
  // "127.0.0.1", "0.0.0.0", "::1": where it listens.
  std::string interface() const;
  void close();
  // The descriptor is the caller's from now on.
  int release();

 private:
  int descriptor_ = -1;
  int port_ = 0;
};

}  // namespace trireme
