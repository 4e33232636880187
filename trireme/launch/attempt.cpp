#include "trireme/launch/attempt.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/base/error.h"

namespace trireme {

struct TakenSignals::Saved {
  sigset_t mask;
};

TakenSignals::TakenSignals() : saved_(std::make_unique<Saved>()) {
  sigset_t taken;
  ::sigemptyset(&taken);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) ::sigaddset(&taken, number);
  ::pthread_sigmask(SIG_BLOCK, &taken, &saved_->mask);
  descriptor_ = ::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) {
    const int reason = errno;
    ::pthread_sigmask(SIG_SETMASK, &saved_->mask, nullptr);
    throw InternalError(cat("signalfd: ", std::strerror(reason)));
  }
}

TakenSignals::~TakenSignals() {
  while (next() != 0) {
  }
  ::close(descriptor_);
  ::pthread_sigmask(SIG_SETMASK, &saved_->mask, nullptr);
}

int TakenSignals::next() const {
  signalfd_siginfo info{};
  return ::read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

namespace {

using Clock = std::chrono::steady_clock;

// After a first failure, time for the others to end by themselves: one that lost its peer then says so, and
// often it ends before the peer that is the cause of it all.
constexpr auto kTimeToSpeak = std::chrono::milliseconds(1000);
constexpr int kPollMilliseconds = 50;

// One rank while it runs, and the two streams that come from it.
struct Watched {
  RankProcess process;
  RankOutput out;
  RankOutput err;
  bool running = true;
};

class Watch {
 public:
  Watch(const std::vector<RankProcess>& ranks, int first_rank, double grace_seconds,
        const TakenSignals& signals, const RankStreams& streams)
      : grace_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(grace_seconds))),
        first_rank_(first_rank),
        signals_(signals) {
    ranks_.reserve(ranks.size());
    for (const RankProcess& process : ranks) {
      const std::string prefix = cat("[rank ", process.rank, "] ");
      ranks_.push_back({process, stdout_of(process.rank, prefix, streams), RankOutput(prefix, streams.err)});
    }
  }

  AttemptResult run() {
    while (running_ranks() > 0) {
      wait_for_news();
      read_signals();
      reap();
      end_the_rest();
    }
    result_.last_lines.resize(ranks_.size());
    for (Watched& rank : ranks_) {
      // What it wrote last. A child that it left behind may hold the pipe open: take what is there, wait for
      // no more.
      drain(rank.process.stdout_fd, rank.out);
      drain(rank.process.stderr_fd, rank.err);
      rank.out.finish();
      rank.err.finish();
      close_pipe(rank.process.stdout_fd);
      close_pipe(rank.process.stderr_fd);
      result_.last_lines[rank.process.rank - first_rank_] = rank.err.last_lines();
    }
    return std::move(result_);
  }

 private:
  static RankOutput stdout_of(int rank, const std::string& prefix, const RankStreams& streams) {
    if (streams.rank_stdout == RankStdout::prefixed) return {prefix, streams.out};
    if (rank == 0) return {std::nullopt, streams.out};
    return {prefix, streams.err};
  }

  int running_ranks() const {
    int count = 0;
    for (const Watched& rank : ranks_) count += rank.running ? 1 : 0;
    return count;
  }

  void wait_for_news() {
    std::vector<pollfd> waiting{{signals_.descriptor(), POLLIN, 0}};
    for (const Watched& rank : ranks_) {
      for (const int descriptor : {rank.process.stdout_fd, rank.process.stderr_fd}) {
        waiting.push_back({descriptor, POLLIN, 0});  // poll passes over a closed one (-1)
      }
    }
    const int ready = ::poll(waiting.data(), waiting.size(), kPollMilliseconds);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (waiting[1 + 2 * i].revents != 0) drain(ranks_[i].process.stdout_fd, ranks_[i].out);
      if (waiting[2 + 2 * i].revents != 0) drain(ranks_[i].process.stderr_fd, ranks_[i].err);
    }
    if (ready != 0) return;
    for (Watched& rank : ranks_) {  // quiet: show live lines as far as they are
      rank.out.show_pending();
      rank.err.show_pending();
    }
  }

  static void close_pipe(int& descriptor) {
    if (descriptor >= 0) ::close(descriptor);
    descriptor = -1;
  }

  static void drain(int& descriptor, RankOutput& output) {
    std::array<char, 16384> buffer{};
    // A rank that writes without end must not keep the launcher from its other duties.
    for (int round = 0; round < 16 && descriptor >= 0; ++round) {
      const ssize_t got = ::read(descriptor, buffer.data(), buffer.size());
      if (got > 0) {
        output.take({buffer.data(), static_cast<size_t>(got)});
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        close_pipe(descriptor);
      } else {
        return;
      }
    }
  }

  void signal_all(int number) {
    for (const Watched& rank : ranks_) {
      if (rank.running) ::kill(-rank.process.pid, number);
    }
  }

  void read_signals() {
    for (int number = signals_.next(); number != 0; number = signals_.next()) {
      if (number == SIGCHLD) continue;
      if (number == SIGUSR1 || number == SIGUSR2) {
        signal_all(number);
        continue;
      }
      // The ranks may save first, so the first request has no deadline; a second one does not wait.
      signal_all(result_.stop_signal == 0 ? number : SIGKILL);
      result_.stop_signal = number;
    }
  }

  void reap() {
    for (Watched& rank : ranks_) {
      int status = 0;
      if (!rank.running || ::waitpid(rank.process.pid, &status, WNOHANG) != rank.process.pid) continue;
      rank.running = false;
      ::kill(-rank.process.pid, SIGKILL);  // processes that it left behind
      RankEnd end{.rank = rank.process.rank, .pid = rank.process.pid};
      if (WIFSIGNALED(status)) {
        end.signal = WTERMSIG(status);
      } else {
        end.code = WEXITSTATUS(status);
      }
      end.ended_by_us = told_ || result_.stop_signal != 0;
      result_.ends.push_back(end);
      if (end.failed() && !first_failure_) first_failure_ = Clock::now();
    }
  }

  // After a failure: a moment, SIGTERM to the rest, SIGKILL after the grace.
  void end_the_rest() {
    if (!first_failure_) return;
    const auto now = Clock::now();
    if (!told_) {
      if (now < *first_failure_ + kTimeToSpeak) return;
      signal_all(SIGTERM);
      told_ = true;
      deadline_ = now + grace_;
    } else if (now >= deadline_) {
      signal_all(SIGKILL);
    }
  }

  Clock::duration grace_;
  int first_rank_;
  const TakenSignals& signals_;
  std::vector<Watched> ranks_;
  AttemptResult result_;
  std::optional<Clock::time_point> first_failure_;
  bool told_ = false;
  Clock::time_point deadline_;
};

}  // namespace

AttemptResult watch(const std::vector<RankProcess>& ranks, int first_rank, double grace_seconds,
                    const TakenSignals& signals, const RankStreams& streams) {
  return Watch(ranks, first_rank, grace_seconds, signals, streams).run();
}

}  // namespace trireme
