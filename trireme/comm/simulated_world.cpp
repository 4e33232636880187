#include "trireme/comm/simulated_world.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme {

SimulatedWorld::SimulatedWorld(int ranks, int machine_ranks, ExchangeLibrary library,
                               std::chrono::milliseconds timeout, std::shared_ptr<RankActivity> activity)
    : World({.size = ranks, .local_size = std::min(ranks, machine_ranks)}, timeout,
            std::gcd(ranks, std::min(ranks, machine_ranks)), std::move(activity)),
      library_(library) {}

c10::intrusive_ptr<c10d::Backend> SimulatedWorld::connect(const std::string& /*key*/,
                                                          const std::string& /*name*/,
                                                          const GroupMembership& group) {
  return make_absent_ranks_backend(stand_ins_, static_cast<int>(group.world_ranks.size()), library_);
}

}  // namespace trireme
