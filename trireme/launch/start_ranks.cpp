#include "trireme/launch/start_ranks.h"

#include <algorithm>
#include <filesystem>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/base/cpu_cores.h"
#include "trireme/base/environment.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

// The columns left beside "[rank N] "; empty: the rank's lines are not redrawn.
std::string terminal_of_rank(const LaunchOptions& options, int rank) {
  const int columns = options.terminal_columns - static_cast<int>(cat("[rank ", rank, "] ").size());
  return columns > 0 ? std::to_string(columns) : "";
}

std::map<std::string, std::string> environment_of(const LaunchOptions& options, int rank, int local_rank,
                                                  const AttemptStart& start, const std::string& secret) {
  std::map<std::string, std::string> variables{
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", std::to_string(options.world_size())},
      {"LOCAL_WORLD_SIZE", std::to_string(options.nproc)},
      {"MASTER_ADDR", options.master_address},
      {"MASTER_PORT", std::to_string(start.port)},
      {"TRIREME_MASTER_FD", ""},
      {"TRIREME_RUN_ID", start.run_id},
      {"TRIREME_SECRET", secret},
      {"TRIREME_SECRET_FILE", ""},
      {"TRIREME_TERMINAL", terminal_of_rank(options, rank)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(start.attempt)},
      {"TRIREME_FIRST_RANKS", options.first_ranks > 0 ? std::to_string(options.first_ranks) : ""},
      {"TORCHELASTIC_RUN_ID", ""},
      {"TORCHELASTIC_USE_AGENT_STORE", ""},
  };
  if (!options.visible_devices.empty()) variables["CUDA_VISIBLE_DEVICES"] = options.visible_devices;
  if (!environment("OMP_NUM_THREADS"))
    variables["OMP_NUM_THREADS"] = std::to_string(std::max(1, cpu_cores() / options.nproc));
  return variables;
}

void end_all(const std::vector<RankProcess>& ranks) {
  for (const RankProcess& rank : ranks) {
    ::kill(-rank.pid, SIGKILL);
    ::waitpid(rank.pid, nullptr, 0);
  }
}

}  // namespace

std::string program_of(const LaunchOptions& options) {
  if (!options.program.empty()) return options.program;
  std::error_code unread;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", unread);
  if (unread) throw ConfigError(cat("cannot read /proc/self/exe: ", unread.message()));
  // Replaced since, by an upgrade: the link still leads to the file that runs.
  return ::access(program.c_str(), X_OK) == 0 ? program : "/proc/self/exe";
}

std::vector<RankProcess> start_ranks(const LaunchOptions& options, AttemptStart& start,
                                     const std::string& secret) {
  const std::string program = program_of(options);
  std::vector<RankProcess> ranks;
  try {
    for (int local_rank = 0; local_rank < options.nproc; ++local_rank) {
      const int rank = options.ranks_before(options.node_rank) + local_rank;
      auto variables = environment_of(options, rank, local_rank, start, secret);
      int inherit = -1;
      if (local_rank == 0 && start.socket) {
        inherit = start.socket->descriptor();
        variables["TRIREME_MASTER_FD"] = std::to_string(inherit);
      }
      ranks.push_back(start_rank(rank, program, options.command, variables, inherit));
      start.socket.reset();  // only rank 0 has it now: if rank 0 dies, nobody waits in its queue
    }
  } catch (const Error&) {
    end_all(ranks);
    throw;
  }
  return ranks;
}

}  // namespace trireme
