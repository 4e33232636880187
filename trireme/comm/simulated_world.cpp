#include "trireme/comm/simulated_world.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme {

SimulatedWorld::SimulatedWorld(int ranks, int machine_ranks, BackendLibrary library,
                               std::chrono::milliseconds timeout, std::shared_ptr<RankActivity> activity)
    : World({.size = ranks, .local_size = std::min(ranks, machine_ranks)}, timeout,
            std::gcd(ranks, std::min(ranks, machine_ranks)), std::move(activity)),
      library_(library) {}

c10::intrusive_ptr<c10d::Backend> SimulatedWorld::connect(const std::string& /*key*/,
                                                          const std::string& /*name*/,
                                                          const GroupMembership& group) {
  const auto on_this_machine = [&](int rank) { return rank < identity().local_size; };
  const bool spans_machines = !std::ranges::all_of(group.world_ranks, on_this_machine);
  const bool over_gloo = library_ == BackendLibrary::post_board && spans_machines;
  return make_absent_ranks_backend(stand_ins_, static_cast<int>(group.world_ranks.size()),
                                   over_gloo ? BackendLibrary::gloo : library_);
}

}  // namespace trireme
