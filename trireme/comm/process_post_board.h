// A post board whose ranks are processes of one machine. They meet in a page of shared memory that has no
// name, and copy from each other's memory (peer_memory.h): each byte is copied once, from the sender's tensor
// to the receiver's. Nothing stays behind when processes end, however they end.
//
// A wait spins for some microseconds, then sleeps until the rank that it waits for wakes it. A rank whose
// process has ended is named to all within kWatch.
#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/comm/peer_memory.h"
#include "trireme/comm/post_board.h"

namespace trireme {

struct BoardPage;

class ProcessPostBoard final : public PostBoard {
 public:
  // `peers[i]` is the process of the group's rank i, which all ranks of the group can read. Collective: rank
  // 0 makes the page, and stays until all have returned. Throws std::runtime_error or the store's error.
  ProcessPostBoard(c10d::Store& store, int rank, std::vector<int> world_ranks,
                   std::vector<std::shared_ptr<const PeerProcess>> peers);

  std::span<const int64_t> send_bytes(int peer) const override;
  void copy_from(int peer, int64_t offset, at::Tensor to) const override;
  void leave() override;

 private:
  void throw_if_broken() const override;
  void show(const Post& post) override;
  std::string_view collective(int peer) const override;
  void wait_for_all(std::chrono::steady_clock::time_point deadline) override;
  void fail(const std::string& why) override;
  void withdraw() override { posted_.reset(); }

  bool has_come(int peer) const;
  void wait_for(int peer, std::chrono::steady_clock::time_point deadline);
  void look_for_ended_processes();
  std::string ended(int peer) const;  // "rank 1 (process 4711) has ended"
  [[noreturn]] void fail_and_throw(const std::string& why);

  std::vector<std::shared_ptr<const PeerProcess>> peers_;
  FileDescriptor descriptor_;  // of the page; the others open that of rank 0
  std::shared_ptr<BoardPage> page_;
  at::Tensor posted_;      // keeps the bytes in memory that peers read
  uint32_t arrivals_ = 0;  // of this rank; it wraps
};

}  // namespace trireme
