// The peak memory of every rank, and a warning before it is too much. The launcher's user sees rank 0 alone;
// the rank that ends a run is the fullest one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/agreement.h"
#include "trireme/comm/rank_identity.h"
#include "trireme/engine/engine.h"

namespace trireme {

// What this rank's device has for it: its GPU's memory; of the host memory that the ranks of this machine may
// use, an equal share.
int64_t memory_room_bytes(const EngineOptions& engine, const RankIdentity& identity);

// The share of that room up to which nothing is said: where --recompute auto keeps more than it must, or
// activations stay that a rank's host does not hold, what is planned with, else a first run's
// (kFirstRunMemoryShare of plan/first_run.h). The same on every rank.
double allowed_memory_share(const Engine& engine);

class MemoryWatch {
 public:
  // `room_bytes`: of this rank. Collective.
  MemoryWatch(at::Device device, int64_t room_bytes, Agreement& agreement);

  // The most bytes that each rank has used so far (peak_memory.h). Collective.
  std::vector<int64_t> look();
  // Of what look() gave: names the rank that is fullest, the first time that it uses above `allowed_share` of
  // its room; empty otherwise. The same on every rank.
  std::string warning(const std::vector<int64_t>& peak_bytes, double allowed_share);

 private:
  at::Device device_;
  Agreement& agreement_;
  std::vector<int64_t> room_bytes_;  // of every rank
  bool warned_ = false;
};

}  // namespace trireme
