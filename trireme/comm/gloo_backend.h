// Groups of processes over TCP on CPUs: c10d's Gloo backend.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trireme {

// Collective over the `size` ranks that share `store`. `same_machine`: they connect over the loopback
// interface (unless GLOO_SOCKET_IFNAME names one); else over the interface of this machine's host name.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, bool same_machine,
                                                    std::chrono::milliseconds timeout);

}  // namespace trireme
