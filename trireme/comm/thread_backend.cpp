#include "trireme/comm/thread_backend.h"

#include <stdexcept>

#include "trireme/base/error.h"
#include "trireme/comm/call_time.h"

namespace trireme {

ThreadMeeting::ThreadMeeting(std::vector<int> world_ranks)
    : world_ranks_(std::move(world_ranks)), posts_(world_ranks_.size()), here_(world_ranks_.size(), 0) {}

bool ThreadMeeting::has_world_rank(int world_rank) const {
  return std::find(world_ranks_.begin(), world_ranks_.end(), world_rank) != world_ranks_.end();
}

void ThreadMeeting::fail(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty()) failure_ = why;
  changed_.notify_all();
}

void ThreadMeeting::wait_for_all(std::unique_lock<std::mutex>& lock, int rank,
                                 std::chrono::steady_clock::time_point deadline) {
  if (!failure_.empty()) throw std::runtime_error(failure_);
  const int64_t round = round_;
  here_[rank] = 1;
  if (++arrived_ == ranks()) {
    arrived_ = 0;
    std::fill(here_.begin(), here_.end(), 0);
    ++round_;
    changed_.notify_all();
    return;
  }
  const bool woken =
      changed_.wait_until(lock, deadline, [&] { return round_ != round || !failure_.empty(); });
  // A round that everyone reached is complete, even if a rank failed right after it.
  if (round_ != round) return;
  if (woken) throw std::runtime_error(failure_);
  std::string missing;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (here_[peer] == 0) missing += cat(missing.empty() ? "" : ", ", world_ranks_[peer]);
  }
  failure_ = cat("timed out; did not come: rank ", missing);
  changed_.notify_all();
  throw std::runtime_error(failure_);
}

void ThreadMeeting::exchange(int rank, Post post, std::chrono::milliseconds timeout,
                             const std::function<void(const std::vector<Post>&)>& copy) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::unique_lock<std::mutex> lock(mutex_);
  posts_[rank] = std::move(post);
  wait_for_all(lock, rank, deadline);
  lock.unlock();
  try {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (posts_[peer].collective != posts_[rank].collective) {
        throw std::runtime_error(cat("rank ", world_ranks_[rank], " is in ", posts_[rank].collective,
                                     " while rank ", world_ranks_[peer], " is in ", posts_[peer].collective));
      }
    }
    copy(posts_);
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
  lock.lock();
  wait_for_all(lock, rank, deadline);
  posts_[rank] = {};  // a tensor must not live on until the group's next collective
}

namespace {

class FinishedWork : public c10d::Work {
 public:
  FinishedWork() { finish(); }
};

class ThreadBackend : public c10d::Backend {
 public:
  ThreadBackend(std::shared_ptr<ThreadMeeting> meeting, int rank, std::chrono::milliseconds timeout)
      : Backend(rank, meeting->ranks()), meeting_(std::move(meeting)), timeout_(timeout) {}

  const std::string getBackendName() const override { return "threads"; }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_sizes,
                                               std::vector<int64_t>& input_sizes,
                                               const c10d::AllToAllOptions&) override {
    return run({"alltoall", input, input_sizes}, output, [&](const std::vector<ThreadMeeting::Post>& posts) {
      int64_t to = 0;
      for (int peer = 0; peer < size_; ++peer) {
        const auto& sizes = posts[peer].send_sizes;
        if (sizes[rank_] != output_sizes[peer]) {
          throw std::runtime_error(cat("the group's rank ", peer, " sends ", sizes[rank_], " to rank ", rank_,
                                       ", which expects ", output_sizes[peer]));
        }
        int64_t from = 0;
        for (int before = 0; before < rank_; ++before) from += sizes[before];
        output.narrow(0, to, sizes[rank_]).copy_(posts[peer].tensor.narrow(0, from, sizes[rank_]));
        to += sizes[rank_];
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    return run({"allgather", input, {}}, output, [&](const std::vector<ThreadMeeting::Post>& posts) {
      const int64_t each = output.size(0) / size_;
      for (int peer = 0; peer < size_; ++peer) {
        at::Tensor part = output.narrow(0, peer * each, each);
        if (part.data_ptr() != posts[peer].tensor.data_ptr()) part.copy_(posts[peer].tensor);
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const int root = static_cast<int>(options.rootRank);
    at::Tensor& tensor = tensors.at(0);
    return run({cat("broadcast from ", root), tensor, {}}, tensor,
               [&](const std::vector<ThreadMeeting::Post>& posts) {
                 if (rank_ != root) tensor.copy_(posts[root].tensor);
               });
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    const at::Tensor nothing = at::empty({0});
    return run({"barrier", nothing, {}}, nothing, [](const std::vector<ThreadMeeting::Post>&) {});
  }

 private:
  c10::intrusive_ptr<c10d::Work> run(
      ThreadMeeting::Post post, const at::Tensor& output,
      const std::function<void(const std::vector<ThreadMeeting::Post>&)>& copy) {
    // Other ranks' streams do not wait for this rank's stream, so the host waits.
    wait_for_stream(post.tensor.device());
    meeting_->exchange(rank_, std::move(post), timeout_, [&](const std::vector<ThreadMeeting::Post>& posts) {
      copy(posts);
      wait_for_stream(output.device());
    });
    return c10::make_intrusive<FinishedWork>();
  }

  std::shared_ptr<ThreadMeeting> meeting_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_thread_backend(std::shared_ptr<ThreadMeeting> meeting, int rank,
                                                      std::chrono::milliseconds timeout) {
  return c10::make_intrusive<ThreadBackend>(std::move(meeting), rank, timeout);
}

}  // namespace trireme
