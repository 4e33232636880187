// A Group: some ranks of the run that exchange tensors with each other. It wraps a c10d backend (NCCL on
// GPUs, Gloo on CPUs, our own in-process one whose ranks are threads), its timeout, and counters of what
// travels. Collectives over a group are the free functions in collectives.h. A group of one rank has no
// backend; groups of the same ranks may share one (world.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "trireme/base/rank_activity.h"
#include "trireme/comm/call_time.h"

namespace trireme {

// What one rank sent to others (its own share never travels), by collective name.
struct Traffic {
  int64_t calls = 0;
  int64_t sent_bytes = 0;
  double seconds = 0;  // waiting included; on a device those of its stream (call_time.h)
};

class Group {
 public:
  // `world_ranks[i]` is the rank in the whole run of this group's rank i (for messages).
  Group(std::string name, std::shared_ptr<c10d::Backend> backend, std::vector<int> world_ranks, int rank,
        std::chrono::milliseconds timeout, std::shared_ptr<RankActivity> activity = nullptr);

  // A group of one without a backend: every collective is the identity.
  static Group alone(std::string name);

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  bool is_alone() const { return backend_ == nullptr; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  c10d::Backend& backend() const;  // InternalError for a group of one

  // Where the rank tells what it waits for.
  RankActivity& activity() const { return *activity_; }

  // "all_to_all" -> what it has sent so far. Waits for the device that these collectives ran on.
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

  // Adds up the spans that the device has passed, or all of them.
  void add_passed_spans(bool all) const;
  mutable std::map<std::string, Traffic> traffic_;
  mutable std::deque<std::pair<std::string, StreamSpan>> spans_;  // whose seconds are not known yet
};

}  // namespace trireme
