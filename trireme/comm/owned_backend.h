// The lifetime of a communication backend that several groups share: it closes when its last user is
// destroyed.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme {

// Normally, closing waits for collectives in progress and is collective: every rank of the backend destroys
// its last user at the same point of the program. While an exception unwinds the stack, the peers may be
// gone, so closing waits for nobody: the end of the process closes the connections.
std::shared_ptr<c10d::Backend> own_backend(c10::intrusive_ptr<c10d::Backend> backend);

}  // namespace trireme
