// Ranks as threads of one process: quick tests of everything distributed, and many ranks on one GPU.
#pragma once

#include <functional>

#include "trireme/comm/world.h"

namespace trireme {

// Runs `body` on `ranks` threads, each with its own World, and joins them. If a rank throws, collectives in
// which other ranks wait end with CommError, and this function rethrows the exception of the rank that failed
// first, or that the first only heard of. The attempt and the launch are those of `like`.
void run_ranks_as_threads(int ranks, const std::function<void(World&)>& body,
                          std::chrono::milliseconds timeout = std::chrono::seconds(60),
                          const RankIdentity& like = {});

}  // namespace trireme
