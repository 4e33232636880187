// Reads this process's RankIdentity from the environment variables of its launcher:
//
//   torchrun, trireme launch, Kubernetes  RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
//   mpirun (Open MPI)                     OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE
//   srun (Slurm)                          SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODEID ...
#include "trireme/comm/rank_identity.h"

#include <numeric>
#include <optional>
#include <unistd.h>
#include <utility>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"
#include "trireme/base/parse_whole.h"
#include "trireme/comm/slurm_lists.h"

namespace trireme {
namespace {

std::optional<int> rank_variable(const std::string& name) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  const auto value = parse_whole<int>(*text);
  if (!value || *value < 0)
    throw ConfigError(
        cat("environment variable ", name, " is '", *text, "', expected a whole number from 0 on"));
  return value;
}

int required(const std::string& name, const std::string& because) {
  const auto value = rank_variable(name);
  if (!value)
    throw ConfigError(cat("environment variable ", name, " is not set, though ", because, "; set both"));
  return *value;
}

// `names` are the variables that gave rank, size, local rank and local size.
void check(const RankIdentity& identity, const std::vector<std::string>& names) {
  const auto below = [&](const std::string& a, int value_a, const std::string& b, int value_b) {
    if (value_a >= value_b) {
      throw ConfigError(cat("environment variables contradict each other: ", a, " is ", value_a, ", ", b,
                            " is ", value_b, "; expected ", a, " < ", b));
    }
  };
  below(names[0], identity.rank, names[1], identity.size);
  below(names[2], identity.local_rank, names[3], identity.local_size);
  if (identity.local_size > identity.size) {
    throw ConfigError(cat("environment variables contradict each other: ", names[3], " is ",
                          identity.local_size, ", more than ", names[1], ", which is ", identity.size));
  }
}

// Reads where the ranks meet. If `address_if_unset` is empty, MASTER_ADDR must be set.
void read_master(RankIdentity& identity, const std::string& address_if_unset, const std::string& port_hint) {
  if (identity.size == 1) return;
  const std::string address = environment("MASTER_ADDR").value_or(address_if_unset);
  if (address.empty()) {
    throw ConfigError(cat("environment variable MASTER_ADDR is not set for a run of ", identity.size,
                          " ranks; set it to the host name or address of rank 0's machine"));
  }
  const auto port = rank_variable("MASTER_PORT");
  if (!port) {
    throw ConfigError(cat("environment variable MASTER_PORT is not set for a run of ", identity.size,
                          " ranks; set it, the same for all ranks, to a free port of ", address, port_hint));
  }
  if (*port < 1 || *port > 65535) {
    throw ConfigError(
        cat("environment variable MASTER_PORT is ", *port, ", expected a port from 1 to 65535"));
  }
  identity.master_address = address;
  identity.master_port = *port;
}

// `trireme launch` names its launches. torchrun does so with --rdzv-id; otherwise the process that restarts
// the ranks identifies the launch.
void name_launch(RankIdentity& identity) {
  identity.launch_is_guessed = false;
  if (const auto id = environment("TRIREME_RUN_ID")) {
    identity.launch_id = *id;
  } else if (const std::string name = environment("TORCHELASTIC_RUN_ID").value_or("none"); name != "none") {
    identity.launch_id = cat("torchrun ", name);
  } else {
    identity.launch_is_guessed = true;
    if (environment("TORCHELASTIC_RESTART_COUNT"))
      identity.launch_id = cat("agent ", boot_id(), " ", ::getppid(), " ", start_ticks(::getppid()));
  }
}

RankIdentity from_torchrun() {
  RankIdentity identity;
  identity.rank = required("RANK", "WORLD_SIZE is");
  identity.size = required("WORLD_SIZE", "RANK is");
  // Kubernetes operators run one rank per pod and set neither variable.
  identity.local_rank = rank_variable("LOCAL_RANK").value_or(0);
  identity.local_size = rank_variable("LOCAL_WORLD_SIZE").value_or(identity.local_rank + 1);
  check(identity, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  read_master(identity, "", "");
  identity.master_listen_fd = rank_variable("TRIREME_MASTER_FD").value_or(-1);
  identity.agent_has_store = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  identity.attempt = environment("TORCHELASTIC_RESTART_COUNT").value_or("0");
  name_launch(identity);
  if (const auto id = environment("TORCHELASTIC_RUN_ID"))
    identity.secret = derived_secret("TORCHELASTIC_RUN_ID", *id);
  return identity;
}

RankIdentity from_openmpi() {
  RankIdentity identity;
  identity.rank = required("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE is");
  identity.size = required("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK is");
  identity.local_rank = required("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK is");
  identity.local_size = required("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK is");
  check(identity, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                   "OMPI_COMM_WORLD_LOCAL_SIZE"});
  read_master(identity, identity.local_size == identity.size ? "127.0.0.1" : "",
              ", e.g. mpirun -x MASTER_PORT=29400");
  return identity;
}

RankIdentity from_slurm() {
  RankIdentity identity;
  identity.rank = required("SLURM_PROCID", "SLURM_STEP_ID is");
  // SLURM_NTASKS describes the job; a step (srun -n) may have fewer tasks.
  const std::string size_name = environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  identity.size = required(size_name, "SLURM_PROCID is");
  identity.local_rank = required("SLURM_LOCALID", "SLURM_PROCID is");
  const int node = required("SLURM_NODEID", "SLURM_PROCID is");
  const std::string tasks_name =
      environment("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  const auto tasks = environment(tasks_name);
  if (!tasks)
    throw ConfigError(cat("environment variable ", tasks_name, " is not set, though SLURM_PROCID is"));
  const std::vector<int> per_node = slurm_tasks_per_node(*tasks);
  if (node >= static_cast<int>(per_node.size())) {
    throw ConfigError(cat("environment variables contradict each other: SLURM_NODEID is ", node, ", ",
                          tasks_name, " is '", *tasks, "', which describes ", per_node.size(), " nodes"));
  }
  identity.local_size = per_node[node];
  // A job that Slurm requeues is the same launch.
  identity.attempt = environment("SLURM_RESTART_COUNT").value_or("0");
  const std::string step =
      cat(environment("SLURM_JOB_ID").value_or(""), ".", environment("SLURM_STEP_ID").value_or(""));
  identity.launch_id = cat("slurm ", step);
  identity.launch_is_guessed = false;
  identity.secret = derived_secret("SLURM_JOB_ID and SLURM_STEP_ID", step);
  check(identity, {"SLURM_PROCID", size_name, "SLURM_LOCALID", tasks_name});
  const auto nodes =
      environment(environment("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST");
  read_master(identity, nodes ? slurm_first_host(*nodes) : "",
              ", e.g. export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000)) before srun");
  return identity;
}

}  // namespace

std::vector<int> RankIdentity::all_ranks() const {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

RankIdentity rank_identity_from_environment() {
  RankIdentity identity;
  if (environment("RANK") || environment("WORLD_SIZE")) {
    identity = from_torchrun();
  } else if (environment("OMPI_COMM_WORLD_RANK") || environment("OMPI_COMM_WORLD_SIZE")) {
    identity = from_openmpi();
  } else if (environment("SLURM_STEP_ID") && environment("SLURM_PROCID")) {
    // A batch script itself is no rank, though SLURM_PROCID is set there; only srun's steps have an id.
    identity = from_slurm();
  }
  if (identity.size == 1) {
    identity.secret = {};
  } else if (auto given = given_secret()) {
    identity.secret = std::move(*given);
  }
  return identity;
}

}  // namespace trireme
