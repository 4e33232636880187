// The life of a communication backend that several groups share: it closes when its last user goes.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme {

// On the normal path closing waits for what was begun and is collective: every rank of the backend lets its last user go
// at the same point of the program. While an exception unwinds the stack the peers may be gone, so the backend is aborted
// and waits for no one. NCCL needs this, and otherwise warns and aborts always; the other backends close in their
// destructors.
std::shared_ptr<c10d::Backend> own_backend(c10::intrusive_ptr<c10d::Backend> backend);

}  // namespace trireme
