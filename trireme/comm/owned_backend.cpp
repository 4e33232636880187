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
              switch (library_of(*backend)) {
                case BackendLibrary::nccl:
                  // Aborting waits for the whole device, and so for collectives of other communicators, which
                  // wait for peers that wait in this one. What this rank began ends once live peers come to
                  // it; so nothing is closed, and the error is reported.
                  static_cast<void>(backend.release());
                  return;
                case BackendLibrary::gloo:
                  // Its destructor waits for collectives in progress, while the peers wait in theirs. A
                  // detached thread destroys it, so the error is reported first.
                  std::thread([begun = std::move(backend)]() mutable { begun.reset(); }).detach();
                  return;
                case BackendLibrary::post_board:
                case BackendLibrary::other:
                  backend->abort();
              }
            } catch (const std::exception&) {
              // Nobody waits for a connection that cannot be closed normally.
            }
          }};
}

}  // namespace trireme
