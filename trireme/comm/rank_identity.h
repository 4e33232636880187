// The position of this process among all ranks of the run, from its launcher's environment.
#pragma once

#include <string>
#include <vector>

#include "trireme/comm/run_secret.h"

namespace trireme {

struct RankIdentity {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this machine
  int local_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  int master_listen_fd = -1;      // rank 0 under `trireme launch`: the listening socket that it inherited
  bool agent_has_store = false;   // torchrun's agent already listens at the master's port
  std::string attempt = "0";      // of a restarted run; separates its keys in the store
  RunSecret secret = {};          // each rank proves it
  std::string launch_id = {};     // the same for all attempts of a launch; empty: unknown. Rank 0's counts
  bool launch_is_guessed = true;  // from the process that starts the ranks: differs between pods

  bool restarted() const { return attempt != "0"; }
  std::vector<int> all_ranks() const;  // 0 to size - 1
  std::string master() const { return master_address + ":" + std::to_string(master_port); }
};

// RANK/WORLD_SIZE/LOCAL_RANK/LOCAL_WORLD_SIZE/MASTER_ADDR/MASTER_PORT, else OMPI_*, else SLURM_*, else a run
// of one rank. mpirun under Slurm sets both SLURM_* and OMPI_*; then OMPI_*, of the inner launcher, counts.
// Throws ConfigError that names the variable if variables are incomplete or contradict each other.
RankIdentity rank_identity_from_environment();

}  // namespace trireme
