// A World of one process that is rank 0 of P ranks, of which the others are absent (absent_ranks.h): its
// memory and its own work are those of a run of P ranks, its numbers are not. Rank 0 has the largest share of
// whatever ranks do not share evenly.
#pragma once

#include "trireme/comm/absent_ranks.h"
#include "trireme/comm/world.h"

namespace trireme {

class SimulatedWorld final : public World {
 public:
  // `machine_ranks`: of each machine, its last ones apart. Groups of several machines exchange over Gloo
  // where `library` is a post board.
  SimulatedWorld(int ranks, int machine_ranks, BackendLibrary library, std::chrono::milliseconds timeout,
                 std::shared_ptr<RankActivity> activity = std::make_shared<RankActivity>());

  bool others_are_absent() const override { return true; }
  const StandIns& stand_ins() const { return *stand_ins_; }

 private:
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& key, const std::string& name,
                                            const GroupMembership& group) override;

  BackendLibrary library_;
  std::shared_ptr<StandIns> stand_ins_ = std::make_shared<StandIns>();
};

}  // namespace trireme
