#include "trireme/launch/attempt.h"

#include <algorithm>
#include <optional>
#include <poll.h>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/time_to_speak.h"
#include "trireme/launch/restart_rule.h"

namespace trireme {
namespace {

// Ranks that saved together end at about the same time, but freeing much memory takes a while.
constexpr double kLeastTimeToFollowSeconds = 30;
constexpr int kPollMilliseconds = 50;

class Attempt {
 public:
  Attempt(std::vector<RankProcess> ranks, const LaunchOptions& options, TakenSignals& signals,
          RunControl& control, const RankStreams& streams)
      : options_(options), signals_(signals), control_(control), streams_(streams) {
    ranks_.reserve(ranks.size());
    for (RankProcess& process : ranks) ranks_.emplace_back(std::move(process), streams);
  }

  AttemptResult run() {
    while (running() || (control_.waits() && !asked_again_)) {
      wait_for_news();
      read_requests();
      reap();
      end_the_rest();
    }
    return std::move(result_);
  }

 private:
  bool running() const { return std::ranges::any_of(ranks_, &RunningRank::running); }

  void wait_for_news() {
    std::vector<pollfd> waiting{{signals_.descriptor(), POLLIN, 0}};
    for (const RunningRank& rank : ranks_) {
      for (const int descriptor : {rank.stdout_fd(), rank.stderr_fd()})
        waiting.push_back({descriptor, POLLIN, 0});  // poll() skips a closed descriptor (-1)
    }
    control_.add_to(waiting);
    const int ready = ::poll(waiting.data(), waiting.size(), kPollMilliseconds);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (waiting[1 + 2 * i].revents != 0) ranks_[i].read_stdout();
      if (waiting[2 + 2 * i].revents != 0) ranks_[i].read_stderr();
    }
    streams_.err.show_gathered();
    for (RunningRank& rank : ranks_) {
      rank.note_wait();
      if (ready == 0) rank.show_pending();  // no news: show unfinished live lines
    }
  }

  void ask_all() {
    for (RunningRank& rank : ranks_) rank.ask_to_end();
  }

  void kill_all() {
    for (RunningRank& rank : ranks_) rank.kill();
  }

  void stop(int signal) {
    result_.stop_signal = signal;
    stop_seconds_ = now_seconds();
    // A peer may have failed before the asked rank ended: the request explains that failure.
    if (failure_seconds_) first_stopped_seconds_ = std::exchange(failure_seconds_, std::nullopt);
    ask_all();
  }

  void read_requests() {
    const TakenSignals::StopNews news = signals_.next_request();
    if (news.signal != 0 && news.request == StopRequest::second) {
      asked_again_ = true;
      kill_all();
    }
    if (news.signal != 0 && result_.stop_signal == 0) {
      control_.tell_stop(news.signal);
      stop(news.signal);
    }
    const PeerNews peers = control_.read();
    if (peers.stop_signal != 0 && result_.stop_signal == 0) stop(peers.stop_signal);
    if (peers.failure && result_.stop_signal == 0) note_failure();
    if (peers.failure && !first_stopped_seconds_) first_stopped_seconds_ = now_seconds();
  }

  void note_failure() {
    if (!failure_seconds_) failure_seconds_ = now_seconds();
  }

  void reap() {
    for (RunningRank& rank : ranks_) {
      const std::optional<RankEnd> end = rank.reap();
      if (!end) continue;
      control_.tell(*end);
      result_.ends.push_back(*end);
      if (const int signal = asked_to_stop(*end); signal != 0 && result_.stop_signal == 0) {
        control_.tell_stop(signal);
        stop(signal);
      }
      if (result_.stop_signal != 0 && !first_stopped_seconds_) first_stopped_seconds_ = now_seconds();
      const bool answers_request = result_.stop_signal != 0 && !judge({*end}, true).culprit;
      if (end->failed() && !answers_request) note_failure();
    }
  }

  // Whether all others have ended well and only stopped ranks (SIGSTOP) are left: nobody waits for these or
  // reports them.
  bool only_stopped_ones_run() const {
    if (result_.ends.empty() || failure_seconds_ || !running()) return false;
    const auto ended_or_stopped = [](const RunningRank& rank) {
      return !rank.running() || rank.is_stopped();
    };
    return std::ranges::all_of(ranks_, ended_or_stopped);
  }

  void end_the_rest() {
    const double now = now_seconds();
    const double grace = kAskedAfterSeconds + options_.grace_seconds;
    if (result_.stop_signal != 0) {
      // The ranks were asked already: a second request would end ranks that are saving.
      const double follow = std::max(grace, kLeastTimeToFollowSeconds);
      if (now >= stop_seconds_ + options_.stop_seconds ||
          (failure_seconds_ && now >= *failure_seconds_ + grace) ||
          (first_stopped_seconds_ && now >= *first_stopped_seconds_ + follow))
        kill_all();
    } else if (failure_seconds_ && now >= *failure_seconds_ + kAskedAfterSeconds) {
      ask_all();
      if (now >= *failure_seconds_ + grace) kill_all();
    } else if (!only_stopped_ones_run()) {
      left_behind_seconds_.reset();
    } else if (now >= left_behind_seconds_.value_or(now) + options_.stop_seconds) {
      kill_all();
    } else if (!left_behind_seconds_) {
      left_behind_seconds_ = now;
    }
  }

  const LaunchOptions& options_;
  TakenSignals& signals_;
  RunControl& control_;
  RankStreams streams_;
  std::vector<RunningRank> ranks_;
  AttemptResult result_;
  bool asked_again_ = false;  // a second request came: wait for nobody
  double stop_seconds_ = 0;   // when the run was asked to stop
  std::optional<double> failure_seconds_;
  std::optional<double> left_behind_seconds_;    // since when only stopped ranks run
  std::optional<double> first_stopped_seconds_;  // when a first rank ended because of the request
};

}  // namespace

AttemptResult watch(std::vector<RankProcess> ranks, const LaunchOptions& options, TakenSignals& signals,
                    RunControl& control, const RankStreams& streams) {
  return Attempt(std::move(ranks), options, signals, control, streams).run();
}

}  // namespace trireme
