// A post board whose ranks are threads of one process: they copy from each other's tensors.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "trireme/comm/post_board.h"

namespace trireme {

// Where the threads of one group meet. Shared by their boards.
class ThreadMeeting {
 public:
  explicit ThreadMeeting(std::vector<int> world_ranks);

  bool has_world_rank(int world_rank) const;
  // Every current and later collective throws std::runtime_error(why). The first reason stays.
  void fail(const std::string& why);

 private:
  friend class ThreadPostBoard;
  // A rank's post, which outlives the call that posted it.
  struct Posted {
    std::string collective;
    at::Tensor bytes;
    std::vector<int64_t> send_bytes;
  };

  void throw_if_failed();
  void wait_for_all(int rank, std::chrono::steady_clock::time_point deadline);

  std::vector<int> world_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Posted> posts_;
  std::vector<char> has_arrived_;  // which ranks have arrived at the current wait
  int64_t round_ = 0;
  std::string failure_;
};

class ThreadPostBoard final : public PostBoard {
 public:
  ThreadPostBoard(std::shared_ptr<ThreadMeeting> meeting, int rank);

  std::span<const int64_t> send_bytes(int peer) const override;
  void copy_from(int peer, int64_t offset, at::Tensor to) const override;
  void leave() override {}  // the run tells the meeting when a thread ends (thread_world.cpp)

 private:
  void throw_if_broken() const override { meeting_->throw_if_failed(); }
  void show(const Post& post) override;
  std::string_view collective(int peer) const override;
  void wait_for_all(std::chrono::steady_clock::time_point deadline) override;
  void fail(const std::string& why) override;
  void withdraw() override;

  std::shared_ptr<ThreadMeeting> meeting_;
};

}  // namespace trireme
