// This process's (or thread's) place among all ranks of the run, and the store through which they meet.
// Read from the environment of torchrun, Kubernetes operators, Slurm or Open MPI; alone, it is a world of one.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/comm/group.h"

namespace trireme {

enum class Transport {
  automatic,  // NCCL for CUDA devices, Gloo for the CPU
  gloo,
  nccl,
  threads,  // ranks are threads of this process
};

struct RankPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this machine
  int local_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
};

// RANK/WORLD_SIZE/LOCAL_RANK/LOCAL_WORLD_SIZE/MASTER_ADDR/MASTER_PORT, else SLURM_*, else OMPI_*, else alone.
// Throws ConfigError when they are incomplete or contradict each other, naming the variable.
RankPlace place_from_environment();

class World {
 public:
  virtual ~World() = default;
  const RankPlace& place() const { return place_; }
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // Collective over the whole world: every rank calls it with the same name and list of member groups (which
  // cover each rank at most once); returns the group this rank belongs to (InternalError when in none).
  virtual std::unique_ptr<Group> make_group(const std::string& name,
                                            const std::vector<std::vector<int>>& members) = 0;

 protected:
  World(RankPlace place, std::chrono::milliseconds timeout) : place_(std::move(place)), timeout_(timeout) {}

 private:
  RankPlace place_;
  std::chrono::milliseconds timeout_;
};

// Joins the run through c10d's TCPStore (CommError when the others do not come within the timeout).
std::unique_ptr<World> join_world(const RankPlace& place, Transport transport, bool cuda,
                                  std::chrono::milliseconds timeout);

}  // namespace trireme
