// This process's (or thread's) place among all ranks of the run, and the store through which they meet.
// Read from the environment of torchrun, Kubernetes operators, Slurm or Open MPI; alone, it is a world of
// one.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/base/error.h"
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
  int master_listen_fd = -1;     // rank 0 under `trireme launch`: the listening socket that it inherited
  bool agent_has_store = false;  // torchrun's agent already listens at the master's port
  std::string attempt = "0";     // of a run that was started again; keeps its keys in the store apart
};

// RANK/WORLD_SIZE/LOCAL_RANK/LOCAL_WORLD_SIZE/MASTER_ADDR/MASTER_PORT, else SLURM_*, else OMPI_*, else alone.
// mpirun under Slurm sets both of the latter; then OMPI_*, the inner one, counts.
// Throws ConfigError when they are incomplete or contradict each other, naming the variable.
RankPlace place_from_environment();

// Where a rank stands in the list of member groups given to World::make_group.
struct GroupPlace {
  int index = 0;                 // which of the groups
  int rank = 0;                  // this rank's place in it
  std::vector<int> world_ranks;  // all its members
};

// Collectives of groups with the same ranks and the same queue travel through one backend: on a GPU one communicator and
// one stream, in which each waits for those begun before it. What a computation waits for therefore has another queue
// than what travels beside it.
enum class Queue {
  beside,    // parameters, gradients, what ranks decide together
  exchange,  // attention's exchanges
};

// Of a rank, one thread makes groups, begins collectives, waits for them and drops groups, in the same order on all ranks:
// backends that groups share, and NCCL itself, need that.
class World {
 public:
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  const RankPlace& place() const { return place_; }
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // The least number of ranks that a machine of the run has: what `place` says of its own machine may differ.
  int least_machine_ranks() const { return least_machine_ranks_; }

  // Collective over the whole world: every rank calls it with the same name, queue and list of member groups (which
  // cover each rank at most once); returns the group this rank belongs to (InternalError when in none). A living
  // group of the same members and queue gives it its backend.
  std::unique_ptr<Group> make_group(const std::string& name, const std::vector<std::vector<int>>& members,
                                    Queue queue = Queue::beside);

 protected:
  World(RankPlace place, std::chrono::milliseconds timeout, int least_machine_ranks)
      : place_(std::move(place)), timeout_(timeout), least_machine_ranks_(least_machine_ranks) {}

 private:
  // Collective over the members of `group`, two or more. `key` is one that they agree on and that is not used again.
  virtual c10::intrusive_ptr<c10d::Backend> connect(const std::string& key, const std::string& name,
                                                    const GroupPlace& group) = 0;

  RankPlace place_;
  std::chrono::milliseconds timeout_;
  int least_machine_ranks_ = 1;
  int groups_made_ = 0;
  std::map<std::pair<Queue, std::vector<int>>, std::weak_ptr<c10d::Backend>> backends_;
};

// Called on another thread when a rank of a run over NCCL is lost (heartbeat.h); expected to end the process, whose own
// thread may wait on its device for ever.
using OnLostRank = std::function<void(const CommError&)>;

// Joins the run through a store that all ranks share; `device` is what this rank computes on and what NCCL uses. CommError
// when the others do not come within the timeout, ConfigError on all ranks where two compute on one GPU over NCCL.
std::unique_ptr<World> join_world(const RankPlace& place, c10::intrusive_ptr<c10d::Store> store,
                                  Transport transport, at::Device device, std::chrono::milliseconds timeout,
                                  OnLostRank on_lost = nullptr);

// Joins the run through c10d's TCPStore.
std::unique_ptr<World> join_world(const RankPlace& place, Transport transport, at::Device device,
                                  std::chrono::milliseconds timeout, OnLostRank on_lost = nullptr);

}  // namespace trireme
