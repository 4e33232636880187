#include "trireme/comm/thread_world.h"

#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include <ATen/Parallel.h>

#include "trireme/base/error.h"
#include "trireme/base/last_words.h"
#include "trireme/comm/backend_library.h"
#include "trireme/comm/post_board_backend.h"
#include "trireme/comm/thread_post_board.h"

namespace trireme {
namespace {

// The state that the threads of one run share: the meetings of their groups, and the ranks that have ended.
class SharedRun {
 public:
  // The same meeting for every member that asks with the same key.
  std::shared_ptr<ThreadMeeting> meeting(const std::string& key, const std::vector<int>& world_ranks) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& meeting = meetings_[key];
    if (!meeting) {
      meeting = std::make_shared<ThreadMeeting>(world_ranks);
      for (const auto& [rank, why] : ended_) {
        if (meeting->has_world_rank(rank)) meeting->fail(why);
      }
      if (!failure_.empty()) meeting->fail(failure_);
    }
    return meeting;
  }

  // A rank that returned will not come to another collective: other ranks need not wait for the timeout.
  void end(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string why = cat("rank ", rank, " has already returned");
    ended_[rank] = why;
    for (const auto& [key, meeting] : meetings_) {
      if (meeting->has_world_rank(rank)) meeting->fail(why);
    }
  }

  void fail(int rank, std::exception_ptr exception, const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto points_at_another = [](const std::string& text) {
      return text.find(kAnotherSaysWhy) != std::string::npos;
    };
    // The others fail because the first did, but for one that the first only heard of.
    if (first_ && (!points_at_another(failure_) || points_at_another(message))) return;
    first_ = std::move(exception);
    failure_ = cat("rank ", rank, " ended with an error: ", message);
    for (const auto& [key, meeting] : meetings_) meeting->fail(failure_);
  }

  void rethrow_first() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<ThreadMeeting>> meetings_;
  std::map<int, std::string> ended_;
  std::string failure_;
  std::exception_ptr first_;
};

class ThreadWorld : public World {
 public:
  ThreadWorld(const RankIdentity& identity, std::chrono::milliseconds timeout, SharedRun& run)
      : World(identity, timeout, identity.local_size), run_(run) {}

 private:
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& key, const std::string& /*name*/,
                                            const GroupMembership& group) override {
    return make_post_board_backend(
        kThreadBackend, std::make_unique<ThreadPostBoard>(run_.meeting(key, group.world_ranks), group.rank),
        timeout());
  }

  SharedRun& run_;
};

}  // namespace

void run_ranks_as_threads(int ranks, const std::function<void(World&)>& body,
                          std::chrono::milliseconds timeout, const RankIdentity& like) {
  TRIREME_ASSERT(ranks >= 1, "got ", ranks);
  SharedRun run;
  const int threads_before = at::get_num_threads();
  std::vector<std::jthread> threads;
  threads.reserve(ranks);
  const auto run_rank = [&](int rank) {
    try {
      // Ranks share the cores as processes started by the launcher do.
      at::set_num_threads(std::max(1, threads_before / ranks));
      RankIdentity identity = like;
      identity.rank = identity.local_rank = rank;
      identity.size = identity.local_size = ranks;
      ThreadWorld world(identity, timeout, run);
      body(world);
      run.end(rank);
    } catch (const std::exception& error) {
      run.fail(rank, std::current_exception(), error.what());
    } catch (...) {
      run.fail(rank, std::current_exception(), "an exception that is not a std::exception");
    }
  };
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back(run_rank, rank);
    } catch (const std::system_error& refused) {  // the ranks that began would wait for this one
      run.fail(rank, std::current_exception(), refused.what());
      break;
    }
  }
  threads.clear();  // joins them
  at::set_num_threads(threads_before);
  run.rethrow_first();
}

}  // namespace trireme
