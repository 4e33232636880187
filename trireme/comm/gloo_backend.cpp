#include "trireme/comm/gloo_backend.h"

// Needs trireme/comm/gloo_declarations on the include path; see gloo_declarations/README.md.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "trireme/base/environment.h"

namespace trireme {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, bool same_machine,
                                                    std::chrono::milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  c10::intrusive_ptr<Gloo::Options> options;
  if (same_machine && !environment("GLOO_SOCKET_IFNAME")) {
    options = Gloo::Options::create(timeout);
    options->devices.push_back(Gloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options = Gloo::Options::create_default(timeout);
  }
  return c10::make_intrusive<Gloo>(store, rank, size, options);
}

}  // namespace trireme
