#include "trireme/comm/gloo_backend.h"

#include <signal.h>

// Needs trireme/comm/gloo_declarations on the include path; see gloo_declarations/README.md.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "trireme/base/environment.h"

namespace trireme {
namespace {

// Gloo writes to its sockets with writev: if a peer is gone, SIGPIPE would end this process before it can
// name the peer. A handler that the program has set stays.
void take_broken_connections_as_errors() {
  struct sigaction action = {};
  ::sigaction(SIGPIPE, nullptr, &action);
  if (action.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, const std::string& address,
                                                    std::chrono::milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  take_broken_connections_as_errors();
  c10::intrusive_ptr<Gloo::Options> options;
  if (!address.empty() && !environment("GLOO_SOCKET_IFNAME")) {
    options = Gloo::Options::create(timeout);
    options->devices.push_back(Gloo::createDeviceForHostname(address));
  } else {
    options = Gloo::Options::create_default(timeout);
  }
  return c10::make_intrusive<Gloo>(store, rank, size, options);
}

}  // namespace trireme
