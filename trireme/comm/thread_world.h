// Ranks as threads of one process: quick tests of everything distributed, and many ranks on one GPU.
#pragma once

#include <functional>

#include "trireme/comm/world.h"

namespace trireme {

// Runs `body` on `ranks` threads, each with its own World, and joins them. When one throws, the collectives
// that the others wait in end with CommError, and the first rank's own exception is thrown here. Attempt and launch are
// those of `like`.
void run_ranks_as_threads(int ranks, const std::function<void(World&)>& body,
                          std::chrono::milliseconds timeout = std::chrono::seconds(60),
                          const RankPlace& like = {});

}  // namespace trireme
