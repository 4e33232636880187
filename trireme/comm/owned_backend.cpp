#include "trireme/comm/owned_backend.h"

#include <exception>
#include <thread>
#include <utility>

namespace trireme {

std::shared_ptr<c10d::Backend> own_backend(c10::intrusive_ptr<c10d::Backend> backend) {
  c10d::Backend* const raw = backend.get();
  return {raw, [backend = std::move(backend)](c10d::Backend*) mutable {
            try {
              if (std::uncaught_exceptions() == 0) {
                backend->shutdown();
                return;
              }
              backend->abort();
              // Gloo cannot be aborted: its destructor waits for what was begun, with peers that wait in theirs. The error
              // is told first, and the end of the process closes the connections.
              if (backend->getBackendName() == "gloo")
                std::thread([begun = std::move(backend)]() mutable { begun.reset(); }).detach();
            } catch (const std::exception&) {
              // A connection that cannot be closed in order is closed by the end of the process; nobody waits for it.
            }
          }};
}

}  // namespace trireme
