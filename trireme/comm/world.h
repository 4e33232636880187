// All ranks of the run, of which this process (or thread) is one, and the store through which they meet. A
// single process is a world of one rank.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/base/enum_names.h"
#include "trireme/base/error.h"
#include "trireme/base/rank_activity.h"
#include "trireme/comm/group.h"
#include "trireme/comm/rank_identity.h"

namespace trireme {

// The position of this rank in the list of member groups given to World::make_group().
struct GroupMembership {
  int index = 0;                 // which of the groups
  int rank = 0;                  // this rank's index in the group
  std::vector<int> world_ranks;  // all members of the group
};

// Groups with the same ranks and the same queue share one backend: on a GPU one communicator and one stream,
// on which each collective waits for the earlier ones. Collectives that a computation waits for therefore use
// another queue than those that run beside it.
enum class Queue {
  beside,    // parameters, gradients, joint decisions of ranks
  exchange,  // attention's exchanges
};

// On each rank, one thread makes groups, begins collectives, waits for them and destroys groups, in the same
// order on all ranks: shared backends and NCCL itself need this.
class World {
 public:
  virtual ~World() = default;
  World& operator=(World&&) = delete;
  const RankIdentity& identity() const { return identity_; }
  int rank() const { return identity_.rank; }
  int size() const { return identity_.size; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // The greatest number that divides the ranks of every machine: so many neighbours, counted from rank 0, lie
  // on one machine. `identity` knows only this machine's ranks.
  int common_machine_ranks() const { return common_machine_ranks_; }
  // How this rank exchanges with those of its machine, for the user: "memory", "Gloo (why)"; empty: it is
  // alone.
  virtual std::string describe_exchanges() const { return {}; }
  // Whether this is a simulation of one rank (simulated_world.h): exchanges give back what it sends.
  virtual bool others_are_absent() const { return false; }
  // This rank reports its activity to this object; its groups report their waits.
  RankActivity& activity() { return *activity_; }

  // Collective over the whole world: every rank calls it with the same name, queue and list of member groups
  // (which cover each rank at most once). Returns this rank's group; throws InternalError if this rank is in
  // none. The group shares the backend of a living group with the same members and queue.
  std::unique_ptr<Group> make_group(const std::string& name, const std::vector<std::vector<int>>& members,
                                    Queue queue = Queue::beside);

 protected:
  World(RankIdentity identity, std::chrono::milliseconds timeout, int common_machine_ranks,
        std::shared_ptr<RankActivity> activity = std::make_shared<RankActivity>())
      : identity_(std::move(identity)),
        timeout_(timeout),
        common_machine_ranks_(common_machine_ranks),
        activity_(std::move(activity)) {}

 private:
  // Collective over the members of `group`, two or more. All pass the same `key`, which is never used again.
  virtual c10::intrusive_ptr<c10d::Backend> connect(const std::string& key, const std::string& name,
                                                    const GroupMembership& group) = 0;

  RankIdentity identity_;
  std::chrono::milliseconds timeout_;
  int common_machine_ranks_ = 1;
  std::shared_ptr<RankActivity> activity_;
  int groups_made_ = 0;
  std::map<std::pair<Queue, std::vector<int>>, std::weak_ptr<c10d::Backend>> backends_;
};

// Called on another thread when a rank of a run over NCCL is lost (heartbeat.h); must end the process,
// because the rank's thread may wait for its device forever.
using OnLostRank = std::function<void(const CommError&)>;

// How ranks exchange. On GPUs by NCCL. On CPUs, automatic is: groups whose ranks can read each other's memory
// through it (process_post_board.h), others by Gloo.
enum class ExchangeBackend { automatic, memory, gloo, nccl };
constexpr auto enum_names(ExchangeBackend) {
  using enum ExchangeBackend;
  return std::to_array<EnumName<ExchangeBackend>>(
      {{automatic, "auto"}, {memory, "memory"}, {gloo, "gloo"}, {nccl, "nccl"}});
}

struct JoinOptions {
  at::Device device = at::kCPU;  // on which this rank computes
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);
  ExchangeBackend backend = ExchangeBackend::automatic;
  OnLostRank on_lost = nullptr;
  std::shared_ptr<RankActivity> activity = std::make_shared<RankActivity>();
};

// Joins the run through a store that all ranks share. Throws CommError if the others do not come within the
// timeout; ConfigError on all ranks if two compute on one GPU over NCCL, or where the backend that was asked
// for cannot serve them.
std::unique_ptr<World> join_world(const RankIdentity& identity, c10::intrusive_ptr<c10d::Store> store,
                                  JoinOptions options);

// Joins the run through the store that rank 0 opens (run_store.h). Throws ConfigError on all ranks that
// cannot be one run (another secret, number of ranks or program, one rank twice), and if rank 0 cannot
// listen.
std::unique_ptr<World> join_world(const RankIdentity& identity, JoinOptions options);

// A warning if the run's secret can be guessed and other machines can try to join; else nullopt.
std::optional<std::string> open_door_warning(const RankIdentity& identity);

}  // namespace trireme
