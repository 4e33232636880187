// A Group: some ranks of the run that exchange tensors with each other. It wraps a c10d backend (NCCL on
// GPUs; on CPUs a post board of processes or threads, or Gloo), its timeout, and traffic counters.
// Collectives over a group are the free functions in collectives.h. A group of one rank has no backend;
// groups of the same ranks may share a backend (world.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "trireme/base/rank_activity.h"
#include "trireme/comm/call_time.h"

namespace trireme {

// What one rank sent to other ranks in one kind of collective. Its share for itself is not counted.
struct Traffic {
  int64_t calls = 0;
  int64_t sent_bytes = 0;
  double seconds = 0;  // including waits; on a device, of its stream (call_time.h)
};

class Group {
 public:
  // `world_ranks[i]` is the rank in the whole run of this group's rank i (for messages). In a group of one
  // without a backend every collective is the identity.
  Group(std::string name, std::shared_ptr<c10d::Backend> backend, std::vector<int> world_ranks, int rank,
        std::chrono::milliseconds timeout, std::shared_ptr<RankActivity> activity = nullptr);

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  bool is_alone() const { return backend_ == nullptr; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  c10d::Backend& backend() const;  // InternalError for a group of one

  // The object to which the rank reports its waits.
  RankActivity& activity() const { return *activity_; }

  // "all_to_all" -> its traffic so far. Waits for the device on which these collectives ran.
  const std::map<std::string, Traffic>& traffic() const;
  void count(const std::string& collective, int64_t sent_bytes, CallTime time);
  void reset_traffic();

 private:
  std::string name_;
  std::shared_ptr<c10d::Backend> backend_;
  std::vector<int> world_ranks_;
  int rank_ = 0;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<RankActivity> activity_;

  mutable std::map<std::string, Traffic> traffic_;  // its seconds are read from `seconds_`
  std::map<std::string, CallSeconds> seconds_;
};

}  // namespace trireme
