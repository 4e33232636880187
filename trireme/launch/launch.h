// Starts the ranks of a run on this machine and watches them: prefixes their output and passes signals on. If
// a rank dies, ends the other ranks, says which rank died and why, and returns its code.
//
//   launch -> run_control: one launcher, or those of several machines, begin an attempt
//          -> start_ranks: fork/exec of each rank (RANK, WORLD_SIZE, ... in its environment)
//          -> attempt:     output, signals, deaths, other machines' news
//          -> run_control: the rank to blame, the code, another attempt if asked for and allowed
//
// With a list of hosts, launchers are started on them instead, and each launches its own ranks
// (several_hosts.h).
#pragma once

#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/option_list.h"
#include "trireme/base/time_to_speak.h"

namespace trireme {

// Where the ranks' stdout goes.
enum class RankStdout {
  prefixed,   // to `out`, each line with its rank before it
  of_rank_0,  // only rank 0's goes to `out`, byte for byte; the others' goes to `err`, prefixed
};

// Which hosts run launchers, and how they are reached.
struct HostOptions {
  std::string hostfile;          // lines "host slots=8"; empty: this machine alone
  std::string include, exclude;  // "host1:0,1@host2"
  std::optional<int> num_nodes;  // the first so many hosts
  std::optional<int> num_gpus;   // of each host
  std::optional<int> ssh_port;
  std::string launcher_args;  // words for ssh
};

struct LaunchOptions {
  int nproc = 1;                               // ranks on this machine
  int nnodes = 1;                              // machines, each with one launcher
  std::vector<int> nproc_of_nodes;             // where machines differ; empty: nproc on each
  int node_rank = 0;                           // number of this machine, from 0
  std::string master_address;                  // of machine 0; empty: 127.0.0.1 (one machine only)
  int master_port = 0;                         // 0: a free one, chosen by the system (one machine only)
  int max_restarts = 0;                        // of the whole run; machine 0's counts
  double grace_seconds = kKilledAfterSeconds;  // from SIGTERM to SIGKILL, after a failure
  double stop_seconds = 1800;                  // from a request to stop to SIGKILL
  double join_seconds = 600;                   // for the launchers of all machines to meet
  std::string log_dir;                         // keeps each rank's output; empty: nowhere
  std::string secret_file;           // of the run; empty: the environment's, or a new one (one machine only)
  std::string program;               // to run; empty: this program
  std::vector<std::string> command;  // its arguments
  int terminal_columns = 0;          // of `out`, which then redraws live lines (ended by \r); 0: no terminal
  RankStdout rank_stdout = RankStdout::prefixed;
  std::string visible_devices;  // CUDA_VISIBLE_DEVICES of the ranks; empty: this process's
  HostOptions hosts;
  bool elastic = false;      // go on without hosts that are lost for good
  std::string run_id;        // of all attempts; empty: a new one
  int first_attempt = 0;     // its number; the attempts before it were on other hosts
  int first_ranks = 0;       // of the first attempt, whose global batch is kept; 0: as many as now
  bool by_launcher = false;  // started by one on another host, which says the rest (launch_order.h)
  std::function<void(int port)> on_listening;  // of machine 0 of several, where other launchers come

  int ranks_of(int node) const {
    return nproc_of_nodes.empty() ? nproc : nproc_of_nodes.at(static_cast<size_t>(node));
  }
  int ranks_before(int node) const;
  int world_size() const { return ranks_before(nnodes); }
};

// Returns 0 if every rank returned 0, else the code of the rank that failed first (128 + its signal), or 75
// if a rank hung or the run ended because it was asked to (docs/launching.md). The ranks' stdout goes where
// `rank_stdout` says; their stderr and the launcher's messages go to `err`. While it runs, it takes SIGCHLD
// and the stop signals of the calling thread. Throws ConfigError for impossible options, a port in use or a
// program that cannot be run; CommError if the launcher of another machine does not come.
int launch(const LaunchOptions& options, std::ostream& out, std::ostream& err);

void list_launch_options(OptionList& list, LaunchOptions& options);
// Throws ConfigError for numbers out of their range, and options that cannot stand together.
void check_launch_options(const LaunchOptions& options);

}  // namespace trireme
