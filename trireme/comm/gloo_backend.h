// Groups of processes over TCP on CPUs: c10d's Gloo backend.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trireme {

// Collective over the `size` ranks that share `store`. `same_machine`: they listen only at the loopback
// interface, or at the one that GLOO_SOCKET_IFNAME names; otherwise at the interface of this machine's host
// name. From then on this process ignores SIGPIPE, unless it has a handler for it.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, bool same_machine,
                                                    std::chrono::milliseconds timeout);

}  // namespace trireme
