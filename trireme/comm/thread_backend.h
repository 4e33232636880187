// A c10d backend whose ranks are threads of one process that copy from each other. A collective has three
// phases: every rank posts its tensor and waits for all posts; each rank copies from the others' tensors into
// its output; all wait until the last rank has copied. The result does not depend on which thread comes
// first. On a GPU that ranks share, a rank waits for its stream before it posts and after it has copied.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme {

// Where the threads of one group meet. Shared by their backends.
class ThreadMeeting {
 public:
  // The data that one rank shows to the others during a collective.
  struct Post {
    std::string collective;
    at::Tensor tensor;                // the rank's input
    std::vector<int64_t> send_sizes;  // along dim 0, to each rank; empty where the collective has no splits
  };

  // `world_ranks[i]` is the rank in the whole run of this group's rank i (for messages).
  explicit ThreadMeeting(std::vector<int> world_ranks);

  int ranks() const { return static_cast<int>(posts_.size()); }
  bool has_world_rank(int world_rank) const;

  // Posts, waits for everyone, calls `copy` with all posts, waits for everyone again. Collective. Throws
  // std::runtime_error when another rank failed or does not come within the timeout; the group is then broken
  // for all.
  void exchange(int rank, Post post, std::chrono::milliseconds timeout,
                const std::function<void(const std::vector<Post>&)>& copy);

  // Every current and later collective throws std::runtime_error(why). The first reason stays.
  void fail(const std::string& why);

 private:
  void wait_for_all(std::unique_lock<std::mutex>& lock, int rank,
                    std::chrono::steady_clock::time_point deadline);

  std::vector<int> world_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Post> posts_;
  std::vector<char> here_;  // which ranks have arrived at the current wait
  int arrived_ = 0;
  int64_t round_ = 0;
  std::string failure_;
};

// The backend of rank `rank`: alltoall_base, _allgather_base, broadcast, barrier.
c10::intrusive_ptr<c10d::Backend> make_thread_backend(std::shared_ptr<ThreadMeeting> meeting, int rank,
                                                      std::chrono::milliseconds timeout);

}  // namespace trireme
