// Groups of processes over TCP on CPUs: c10d's Gloo backend.
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trireme {

// Collective over the `size` ranks that share `store`. This rank listens at `address`, "127.0.0.1", or at the
// address of this machine's host name if it is empty; GLOO_SOCKET_IFNAME counts more. From then on this
// process ignores SIGPIPE, unless it has a handler for it.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, const std::string& address,
                                                    std::chrono::milliseconds timeout);

}  // namespace trireme
