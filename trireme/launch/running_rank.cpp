#include "trireme/launch/running_rank.h"

#include <signal.h>
#include <sys/wait.h>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"
#include "trireme/launch/pipe.h"

namespace trireme {
namespace {

RankOutput stdout_of(int rank, const RankStreams& streams) {
  if (streams.rank_stdout == RankStdout::prefixed) return {rank, streams.out};
  if (rank == 0) return {std::nullopt, streams.out};
  return {rank, streams.err};
}

RankLog log_of(int rank, const RankStreams& streams, const char* ending) {
  if (streams.logs.empty()) return {};
  return RankLog(streams.logs / cat("rank-", rank, ending));
}

}  // namespace

RunningRank::RunningRank(RankProcess process, const RankStreams& streams)
    : process_(std::move(process)),
      launcher_(streams.launcher),
      out_(stdout_of(process_.rank, streams)),
      err_(process_.rank, streams.err),
      out_log_(log_of(process_.rank, streams, ".out")),
      err_log_(log_of(process_.rank, streams, ".err")) {}

void RunningRank::drain(FileDescriptor& descriptor, RankOutput& output, RankLog& log) {
  read_what_came(descriptor, [&](std::string_view bytes) {
    launcher_ << log.write(bytes) << std::flush;
    output.take(bytes);
  });
}

void RunningRank::show_pending() {
  out_.show_pending();
  err_.show_pending();
}

void RunningRank::note_wait() {
  const auto state = running_ ? process_.activity->read() : std::nullopt;
  if (state && state->waiting) waited_seconds_ = state->seconds;
}

void RunningRank::ask_to_end() {
  if (!running_ || asked_) return;
  look_ = look_at(process_);
  asked_ = true;
  ::kill(-process_.pid, SIGTERM);
}

void RunningRank::kill() {
  if (!running_) return;
  if (!killed_) look_ = look_at(process_);
  asked_ = killed_ = true;
  ::kill(-process_.pid, SIGKILL);
}

std::optional<RankEnd> RunningRank::reap() {
  int status = 0;
  if (!running_ || ::waitpid(process_.pid, &status, WNOHANG) != process_.pid) return std::nullopt;
  running_ = false;
  ::kill(-process_.pid, SIGKILL);  // processes that it left behind
  // A child that the rank left behind may hold the pipe open: read what is there, do not wait for more.
  read_stdout();
  read_stderr();
  out_.finish();
  err_.finish();
  process_.stdout_fd.close();
  process_.stderr_fd.close();
  if (!asked_) look_ = look_at(process_);
  RankEnd end;
  end.rank = process_.rank;
  end.host = host_name();
  end.pid = process_.pid;
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  } else {
    end.code = WEXITSTATUS(status);
  }
  end.asked = asked_;
  end.killed = killed_;
  end.waited_seconds = waited_seconds_;
  end.look = look_;
  end.last_lines = err_.last_lines();
  return end;
}

}  // namespace trireme
