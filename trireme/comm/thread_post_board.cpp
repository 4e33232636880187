#include "trireme/comm/thread_post_board.h"

#include <algorithm>
#include <stdexcept>

#include "trireme/base/contains.h"

namespace trireme {

ThreadMeeting::ThreadMeeting(std::vector<int> world_ranks)
    : world_ranks_(std::move(world_ranks)),
      posts_(world_ranks_.size()),
      has_arrived_(world_ranks_.size(), 0) {}

bool ThreadMeeting::has_world_rank(int world_rank) const {
  return contains(world_ranks_, world_rank);
}

void ThreadMeeting::fail(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty()) failure_ = why;
  changed_.notify_all();
}

void ThreadMeeting::throw_if_failed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

void ThreadMeeting::wait_for_all(int rank, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.empty()) throw std::runtime_error(failure_);
  const int64_t round = round_;
  has_arrived_[rank] = 1;
  if (!contains(has_arrived_, 0)) {
    std::fill(has_arrived_.begin(), has_arrived_.end(), 0);
    ++round_;
    changed_.notify_all();
    return;
  }
  const bool woken =
      changed_.wait_until(lock, deadline, [&] { return round_ != round || !failure_.empty(); });
  // A round that everyone reached is complete, even if a rank failed right after it.
  if (round_ != round) return;
  if (woken) throw std::runtime_error(failure_);
  std::vector<int> missing;
  for (size_t peer = 0; peer < has_arrived_.size(); ++peer) {
    if (has_arrived_[peer] == 0) missing.push_back(world_ranks_[peer]);
  }
  failure_ = timed_out_without(missing);
  changed_.notify_all();
  throw std::runtime_error(failure_);
}

ThreadPostBoard::ThreadPostBoard(std::shared_ptr<ThreadMeeting> meeting, int rank)
    : PostBoard(rank, meeting->world_ranks_), meeting_(std::move(meeting)) {}

void ThreadPostBoard::show(const Post& post) {
  meeting_->posts_[rank()] = {
      std::string(post.collective), post.bytes, {post.send_bytes.begin(), post.send_bytes.end()}};
}

std::string_view ThreadPostBoard::collective(int peer) const {
  return meeting_->posts_[peer].collective;
}

std::span<const int64_t> ThreadPostBoard::send_bytes(int peer) const {
  return meeting_->posts_[peer].send_bytes;
}

void ThreadPostBoard::copy_from(int peer, int64_t offset, at::Tensor to) const {
  to.copy_(meeting_->posts_[peer].bytes.narrow(0, offset, to.size(0)));
}

void ThreadPostBoard::wait_for_all(std::chrono::steady_clock::time_point deadline) {
  meeting_->wait_for_all(rank(), deadline);
}

void ThreadPostBoard::fail(const std::string& why) {
  meeting_->fail(why);
}

void ThreadPostBoard::withdraw() {
  meeting_->posts_[rank()] = {};
}

}  // namespace trireme
