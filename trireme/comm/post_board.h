// How the ranks of a group copy from each other without a library in between: ranks as threads of one process
// (thread_post_board.h), or as processes of one machine (process_post_board.h). A collective has three
// phases:
//
//   post     every rank shows its bytes and waits until all have
//   copy     each rank copies from the others' bytes into its output, or adds them up as it reads
//   leave    all wait until the last rank has copied; then the bytes may change. Those that no other rank
//            reads, a rank's block for itself, may change before
//
// The result does not depend on which rank comes first. post_board_backend.h makes a c10d backend of a board.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

namespace trireme {

// One rank's view of its group's board. The methods are for one thread of the rank, but for send_bytes and
// copy_from, which several may call at once.
class PostBoard {
 public:
  // The bytes that one rank shows during a collective.
  struct Post {
    std::string_view collective;
    at::Tensor bytes;                     // [n] of kByte, contiguous
    std::span<const int64_t> send_bytes;  // to each rank; empty where the collective has no splits
  };

  // `world_ranks[i]` is the rank in the whole run of this group's rank i (for messages).
  PostBoard(int rank, std::vector<int> world_ranks) : rank_(rank), world_ranks_(std::move(world_ranks)) {}
  virtual ~PostBoard() = default;
  PostBoard& operator=(PostBoard&&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(world_ranks_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  // Posts, waits for everyone, calls `copy`, waits for everyone again. Collective. Throws std::runtime_error
  // when another rank failed, is in another collective, or does not come within the timeout of each wait; the
  // board is then broken for all.
  void exchange(const Post& post, std::chrono::milliseconds timeout, const std::function<void()>& copy);

  // For `copy`, while exchange() runs it: another rank's splits, and its bytes [offset, offset + n) into `to`
  // [n]. Throws std::runtime_error if they are not to be had.
  virtual std::span<const int64_t> send_bytes(int peer) const = 0;
  virtual void copy_from(int peer, int64_t offset, at::Tensor to) const = 0;

  // This rank uses the board no more; what waits for it fails.
  virtual void leave() = 0;

 private:
  virtual void throw_if_broken() const = 0;
  virtual void show(const Post& post) = 0;
  virtual std::string_view collective(int peer) const = 0;
  // Returns when every rank has called it as often as this one.
  virtual void wait_for_all(std::chrono::steady_clock::time_point deadline) = 0;
  // Every current and later exchange throws std::runtime_error(why). The first reason stays.
  virtual void fail(const std::string& why) = 0;
  virtual void withdraw() = 0;  // a tensor must not live on until the group's next collective

  int rank_;
  std::vector<int> world_ranks_;
};

// "timed out; did not come: rank 1, 3"
std::string timed_out_without(const std::vector<int>& missing_world_ranks);

}  // namespace trireme
