#include "trireme/comm/owned_backend.h"

#include <exception>

namespace trireme {

std::shared_ptr<c10d::Backend> own_backend(c10::intrusive_ptr<c10d::Backend> backend) {
  c10d::Backend* const raw = backend.get();
  return {raw, [backend = std::move(backend)](c10d::Backend*) {
            try {
              if (std::uncaught_exceptions() > 0)
                backend->abort();
              else
                backend->shutdown();
            } catch (const std::exception&) {
              // A connection that cannot be closed in order is closed by the end of the process; nobody waits for it.
            }
          }};
}

}  // namespace trireme
