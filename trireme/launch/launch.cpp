#include "trireme/launch/launch.h"

#include <array>
#include <cstring>
#include <ostream>
#include <random>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/launch/attempt.h"
#include "trireme/launch/listening_socket.h"
#include "trireme/launch/restart_rule.h"

namespace trireme {
namespace {

void check(const LaunchOptions& options) {
  const auto at_least = [](const char* flag, double value, double least) {
    if (value < least) throw ConfigError(cat("launch: ", flag, " is ", value, ", expected at least ", least));
  };
  at_least("--nproc_per_node", options.nproc, 1);
  at_least("--nnodes", options.nnodes, 1);
  at_least("--node_rank", options.node_rank, 0);
  at_least("--max_restarts", options.max_restarts, 0);
  at_least("--grace_seconds", options.grace_seconds, 0);
  if (options.node_rank >= options.nnodes) {
    throw ConfigError(cat("launch: --node_rank is ", options.node_rank, " of --nnodes ", options.nnodes,
                          "; machines count from 0"));
  }
  if (options.master_port < 0 || options.master_port > 65535) {
    throw ConfigError(cat("launch: --master_port is ", options.master_port, ", expected 1 to 65535"));
  }
  if (options.nnodes > 1 && options.master_port == 0) {
    throw ConfigError(
        "launch: several machines need --master_port, the same free port of machine 0 for all of them");
  }
  if (options.nnodes > 1 && options.master_address == "127.0.0.1") {
    throw ConfigError("launch: several machines need --master_addr, the name or address of machine 0");
  }
  if (options.nnodes > 1 && options.max_restarts > 0) {
    throw ConfigError(
        "launch: --max_restarts works on one machine; over several, let the scheduler start the whole run "
        "again");
  }
}

std::string program_of(const LaunchOptions& options) {
  if (!options.program.empty()) return options.program;
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (size <= 0) throw ConfigError(cat("cannot read /proc/self/exe: ", std::strerror(errno)));
  return {path.data(), static_cast<size_t>(size)};
}

std::string make_run_id(const LaunchOptions& options) {
  if (const auto given = environment("TRIREME_RUN_ID")) return *given;
  // Machines cannot agree on a random one.
  if (options.nnodes > 1) return cat(options.master_address, "-", options.master_port);
  std::random_device random;
  std::ostringstream text;
  text << std::hex << random() << random();
  return text.str();
}

std::map<std::string, std::string> environment_of(const LaunchOptions& options, int local_rank, int port,
                                                  const std::string& run_id, int attempt) {
  std::map<std::string, std::string> variables{
      {"RANK", std::to_string(options.node_rank * options.nproc + local_rank)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", std::to_string(options.nnodes * options.nproc)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.nproc)},
      {"MASTER_ADDR", options.master_address},
      {"MASTER_PORT", std::to_string(port)},
      {"TRIREME_MASTER_FD", ""},
      {"TRIREME_RUN_ID", run_id},
      {"TRIREME_TERMINAL", options.terminal ? "1" : ""},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)},
      {"TORCHELASTIC_USE_AGENT_STORE", ""},
  };
  if (!environment("OMP_NUM_THREADS")) {
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    variables["OMP_NUM_THREADS"] = std::to_string(std::max(1, cores / options.nproc));
  }
  return variables;
}

void end_all(const std::vector<RankProcess>& ranks) {
  for (const RankProcess& rank : ranks) {
    ::kill(-rank.pid, SIGKILL);
    ::waitpid(rank.pid, nullptr, 0);
    ::close(rank.stdout_fd);
    ::close(rank.stderr_fd);
  }
}

std::vector<RankProcess> start_ranks(const LaunchOptions& options, const std::string& run_id, int attempt) {
  const std::string program = program_of(options);
  std::optional<ListeningSocket> socket;
  if (options.node_rank == 0) socket.emplace(options.master_port, options.master_address == "127.0.0.1");
  const int port = socket ? socket->port() : options.master_port;
  std::vector<RankProcess> ranks;
  try {
    for (int local_rank = 0; local_rank < options.nproc; ++local_rank) {
      auto variables = environment_of(options, local_rank, port, run_id, attempt);
      int inherit = -1;
      if (local_rank == 0 && socket) {
        inherit = socket->descriptor();
        variables["TRIREME_MASTER_FD"] = std::to_string(inherit);
      }
      const int rank = options.node_rank * options.nproc + local_rank;
      ranks.push_back(start_rank(rank, program, options.command, variables, inherit));
      if (socket) socket->close();  // rank 0's from now on: when it dies, nobody waits in its queue
    }
  } catch (const Error&) {
    end_all(ranks);
    throw;
  }
  return ranks;
}

void report(const RankEnd& end, const std::deque<std::string>& last_lines, std::ostream& err) {
  err << "trireme launch: rank " << end.rank << " (process " << end.pid << ") ";
  if (end.signal != 0) {
    err << "was killed by signal " << end.signal << " (" << ::strsignal(end.signal) << ")";
    if (end.signal == SIGKILL && !end.ended_by_us)
      err << "; if nobody sent it, the machine was out of memory";
  } else {
    err << "ended with code " << end.code;
  }
  err << "; the other ranks were ended.";
  if (last_lines.empty()) {
    err << " It wrote nothing to stderr.\n";
  } else {
    err << " Its last lines on stderr:\n";
    for (const std::string& line : last_lines) err << "    " << line << '\n';
  }
  err << std::flush;
}

}  // namespace

int launch(const LaunchOptions& options, std::ostream& out, std::ostream& err) {
  check(options);
  const std::string run_id = make_run_id(options);
  const int first_rank = options.node_rank * options.nproc;
  const TakenSignals signals;
  for (int attempt = 0;; ++attempt) {
    const std::vector<RankProcess> ranks = start_ranks(options, run_id, attempt);
    OutputSink out_sink(out, options.terminal), err_sink(err, false);
    const AttemptResult result =
        watch(ranks, first_rank, options.grace_seconds, signals, {out_sink, err_sink, options.rank_stdout});
    out_sink.finish();
    const auto failed = culprit(result.ends);
    if (!failed) return 0;
    if (result.stop_signal != 0) {
      err << "trireme launch: stopped by signal " << result.stop_signal << " ("
          << ::strsignal(result.stop_signal) << ")\n"
          << std::flush;
      return failed->exit_code();
    }
    report(*failed, result.last_lines[failed->rank - first_rank], err);
    if (attempt >= options.max_restarts || !may_restart(result.ends)) return failed->exit_code();
    err << "trireme launch: starting all ranks again (restart " << attempt + 1 << " of "
        << options.max_restarts << ")\n"
        << std::flush;
  }
}

}  // namespace trireme
