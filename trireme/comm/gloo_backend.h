// Groups of processes over TCP on CPUs: c10d's Gloo backend.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trireme {

// Collective over the `size` ranks that share `store`. `same_machine`: they listen at the loopback interface alone (unless
// GLOO_SOCKET_IFNAME names one); else at the interface of this machine's host name. From then on this process takes no
// SIGPIPE, unless it has a handler for it.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, bool same_machine,
                                                    std::chrono::milliseconds timeout);

}  // namespace trireme
