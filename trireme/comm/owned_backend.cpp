#include "trireme/comm/owned_backend.h"

#include <exception>
#include <thread>
#include <utility>

#include "trireme/comm/backend_library.h"

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
              // Gloo cannot be aborted: its destructor waits for collectives in progress, while the peers
              // wait in theirs. A detached thread destroys it, so the error is reported first; the end of the
              // process closes the connections.
              if (library_of(*backend) == BackendLibrary::gloo)
                std::thread([begun = std::move(backend)]() mutable { begun.reset(); }).detach();
            } catch (const std::exception&) {
              // The end of the process closes a connection that cannot be closed normally; nobody waits for
              // it.
            }
          }};
}

}  // namespace trireme
