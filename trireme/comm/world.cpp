#include "trireme/comm/world.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <set>
#include <sys/resource.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/listening_socket.h"
#include "trireme/base/machine_identity.h"
#include "trireme/comm/failure.h"
#include "trireme/comm/gloo_backend.h"
#include "trireme/comm/gpu_of_rank.h"
#include "trireme/comm/heartbeat.h"
#include "trireme/comm/nccl_backend.h"
#include "trireme/comm/owned_backend.h"
#include "trireme/comm/run_store.h"
#include "trireme/comm/store_messages.h"
#include "trireme/device/gpu_identity.h"

namespace trireme {

namespace {

// Throws InternalError if this rank is in none of the groups, or any rank is in two of them.
GroupMembership find_group(const World& world, const std::string& name,
                           const std::vector<std::vector<int>>& members) {
  std::set<int> known_members;
  GroupMembership found;
  bool in_one = false;
  for (size_t index = 0; index < members.size(); ++index) {
    for (size_t rank = 0; rank < members[index].size(); ++rank) {
      const int member = members[index][rank];
      TRIREME_ASSERT(member >= 0 && member < world.size(), "group '", name, "' names rank ", member, " of ",
                     world.size());
      TRIREME_ASSERT(known_members.insert(member).second, "group '", name, "' names rank ", member, " twice");
      if (member != world.rank()) continue;
      in_one = true;
      found = {static_cast<int>(index), static_cast<int>(rank), members[index]};
    }
  }
  TRIREME_ASSERT(in_one, "group '", name, "' does not have rank ", world.rank());
  return found;
}

}  // namespace

std::unique_ptr<Group> World::make_group(const std::string& name,
                                         const std::vector<std::vector<int>>& members, Queue queue) {
  const GroupMembership membership = find_group(*this, name, members);
  const std::string key = cat(groups_made_++, "/", name, "/", membership.index);
  std::shared_ptr<c10d::Backend> backend;
  if (membership.world_ranks.size() > 1) {
    std::weak_ptr<c10d::Backend>& known = backends_[{queue, membership.world_ranks}];
    backend = known.lock();
    if (backend == nullptr) {
      const FailureContext context{cat("connecting group '", name, "'"), rank(), membership.world_ranks,
                                   timeout(), activity_.get()};
      const ActivityWait wait(*activity_, "connecting", name);
      known = backend =
          own_backend(rethrow_as_comm_error(context, [&] { return connect(key, name, membership); }));
    }
  }
  return std::make_unique<Group>(name, std::move(backend), membership.world_ranks, membership.rank, timeout(),
                                 activity_);
}

namespace {

// What ranks learn about each other when they have met.
struct Met {
  int common_machine_ranks = 1;
  bool one_network = true;  // all reach each other over the loopback interface
};

// Where ranks of other machines reach this one; empty: as its host name says, which may be its loopback
// interface.
std::string address_for_others(c10d::Store& store) {
  const auto* run_store = dynamic_cast<const RunStore*>(&store);
  const std::string address = run_store == nullptr ? "" : run_store->local_address();
  return is_loopback(address) ? "" : address;
}

// Ranks that met in a store. Each backend has a separate key prefix in the store.
class StoreWorld : public World {
 public:
  StoreWorld(const RankIdentity& identity, c10::intrusive_ptr<c10d::Store> store, at::Device device,
             std::chrono::milliseconds timeout, const Met& met, OnLostRank on_lost,
             std::shared_ptr<RankActivity> activity)
      : World(identity, timeout, met.common_machine_ranks, std::move(activity)),
        store_(std::move(store)),
        device_(device),
        address_(met.one_network ? "127.0.0.1" : address_for_others(*store_)) {
    if (identity.size == 1 || !device.is_cuda() || !on_lost) return;
    HeartbeatPace pace;
    pace.silence = std::min(pace.silence, timeout);
    pace.period = std::min(pace.period, pace.silence / 10);
    const std::string prefix = cat("trireme/", identity.attempt, "/heartbeat");
    auto connection = store_->clone();
    connection->setTimeout(pace.silence);  // rank 0's machine may vanish without notice
    heartbeat_ =
        std::make_unique<Heartbeat>(c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(connection)),
                                    identity.rank, identity.size, pace, std::move(on_lost));
  }

 private:
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& key, const std::string& name,
                                            const GroupMembership& group) override {
    auto store =
        c10::make_intrusive<c10d::PrefixStore>(cat("trireme/", identity().attempt, "/", key), store_);
    if (device_.is_cuda())
      return make_nccl_backend(store, name, group.rank, group.world_ranks, device_, timeout());
    return make_gloo_backend(store, group.rank, static_cast<int>(group.world_ranks.size()), address_,
                             timeout());
  }

  c10::intrusive_ptr<c10d::Store> store_;
  at::Device device_;
  std::string address_;                   // for Gloo to listen at
  std::unique_ptr<Heartbeat> heartbeat_;  // only over NCCL: other backends' collectives end by themselves
};

// Equal on ranks of one machine and one network namespace, and on no others: these reach each other over the
// loopback interface.
std::string network_identity() {
  const std::string boot = boot_id();
  std::array<char, 64> network{};
  const ssize_t size = ::readlink("/proc/self/ns/net", network.data(), network.size());
  // If one of them is unknown, ranks with the same machine name do not count as one machine.
  if (boot.empty() || size <= 0) return cat(host_name(), " process ", ::getpid());
  return cat(boot, " ", std::string_view(network.data(), static_cast<size_t>(size)));
}

// Returns every rank's `of_rank`, by rank. Collective over the ranks of the store, with a key that was not
// used before. Rank 0 reads all messages and writes them as one list, so the store answers few requests per
// rank.
std::vector<Json> tell_everyone(c10d::Store& store, const RankIdentity& identity, const std::string& key,
                                const Json& of_rank) {
  const auto take = [&](const std::string& from) {
    return parse_json(store.get_to_str(from), cat("the store's ", from));
  };
  const std::string all = key + "/all";
  if (identity.rank != 0) {
    store.set(cat(key, "/", identity.rank), of_rank.dump());
    return take(all).get<std::vector<Json>>();
  }
  std::vector<Json> of_ranks{of_rank};
  for (int peer = 1; peer < identity.size; ++peer) of_ranks.push_back(take(cat(key, "/", peer)));
  store.set(all, Json(of_ranks).dump());
  return of_ranks;
}

// Throws ConfigError unless each rank has a separate GPU, or none has a GPU.
Met meet(const RankIdentity& identity, c10d::Store& store, at::Device device,
         std::chrono::milliseconds timeout) {
  if (identity.size == 1) return {};
  Json of_rank = {{"local_size", identity.local_size}, {"network", network_identity()}};
  if (device.is_cuda()) {
    const GpuIdentity gpu = gpu_identity(device);
    of_rank["gpu"] = {{"uuid", gpu.uuid}, {"bus", gpu.bus}, {"host", host_name()}};
  }
  const FailureContext context{"meeting the other ranks", identity.rank, identity.all_ranks(), timeout};
  const std::vector<Json> of_ranks = rethrow_as_comm_error(context, [&] {
    return tell_everyone(store, identity, cat("trireme/", identity.attempt, "/meeting"), of_rank);
  });
  Met met{identity.local_size, true};
  std::vector<std::optional<RankGpu>> gpus(of_ranks.size());
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const Json& told = of_ranks[rank];
    met.common_machine_ranks = std::gcd(met.common_machine_ranks, told.at("local_size").get<int>());
    met.one_network = met.one_network && told.at("network") == of_rank.at("network");
    if (told.contains("gpu"))
      gpus[rank] = RankGpu{told["gpu"]["uuid"], told["gpu"]["bus"], told["gpu"]["host"]};
  }
  check_gpus(gpus);
  return met;
}

// The port of rank 0's store. Rank 0 publishes it in the store of torchrun's agent, which occupies the
// master's port. c10d's client waits forever for a stopped agent, so it runs on a thread that may be left
// running.
int port_through_agent(const RankIdentity& identity, const StoreServer* server,
                       std::chrono::milliseconds timeout) {
  const auto ask = [identity, port = server == nullptr ? 0 : server->port(), timeout] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(identity.master_port);
    options.waitWorkers = false;  // the agent's store counts the workers of earlier attempts too
    options.timeout = timeout;
    c10d::TCPStore store(identity.master_address, options);
    const std::string key = cat("trireme/", identity.attempt, "/port");
    if (identity.rank == 0) static_cast<c10d::Store&>(store).set(key, std::to_string(port));
    return store.get_to_str(key);
  };
  const FailureContext context{.action = cat("meeting torchrun's agent at ", identity.master()),
                               .world_rank = identity.rank,
                               .timeout = timeout};
  const std::string told = rethrow_as_comm_error(context, [&] {
    const auto port = within(std::chrono::steady_clock::now() + timeout, ask);
    if (!port)
      throw DeadlinePassed("the agent gave no answer: it is stopped or unreachable, or rank 0 has not come");
    return *port;
  });
  int port = 0;
  const auto [end, error] = std::from_chars(told.data(), told.data() + told.size(), port);
  if (error != std::errc() || end != told.data() + told.size() || port < 1 || port > 65535)
    throw ConfigError(cat("torchrun's agent at ", identity.master(), " tells '", printable(told),
                          "', expected the port of rank 0's store; another program writes to "
                          "the agent's store: choose another MASTER_PORT (--master-port)"));
  return port;
}

// The store has some connections from each rank, and the usual limit of open files is 1024.
void raise_limit_of_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::shared_ptr<StoreServer> open_store(const RankIdentity& identity, std::chrono::milliseconds timeout) {
  if (identity.rank != 0) return nullptr;
  raise_limit_of_open_files();
  int descriptor = identity.master_listen_fd;
  if (descriptor < 0) {
    const int port = identity.agent_has_store ? 0 : identity.master_port;
    descriptor = ListeningSocket(identity.master_address, port, ForeignAddress::all_interfaces).release();
  }
  return std::make_shared<StoreServer>(descriptor, identity, timeout);
}

c10::intrusive_ptr<c10d::Store> connect_store(const RankIdentity& identity,
                                              std::chrono::milliseconds timeout) {
  if (identity.size == 1) return c10::make_intrusive<c10d::HashStore>();
  const auto begin = std::chrono::steady_clock::now();
  auto server = open_store(identity, timeout);
  RankIdentity at_store = identity;
  if (identity.agent_has_store) at_store.master_port = port_through_agent(identity, server.get(), timeout);
  const auto left =
      timeout - std::chrono::floor<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
  auto store = c10::make_intrusive<RunStore>(std::move(at_store),
                                             std::max(left, std::chrono::milliseconds(1)), std::move(server));
  store->setTimeout(timeout);
  return store;
}

}  // namespace

std::optional<std::string> open_door_warning(const RankIdentity& identity) {
  if (identity.size == 1 || identity.rank != 0 || !identity.secret.guessable ||
      is_loopback(identity.master_address))
    return std::nullopt;
  return cat("the run has ",
             identity.secret.origin == "no secret"
                 ? "no secret"
                 : cat("a secret that others may guess, ", identity.secret.origin),
             ": whoever reaches ", identity.master(),
             " may join it; give all ranks the same TRIREME_SECRET_FILE (docs/security.md)");
}

std::unique_ptr<World> join_world(const RankIdentity& identity, c10::intrusive_ptr<c10d::Store> store,
                                  at::Device device, std::chrono::milliseconds timeout, OnLostRank on_lost,
                                  std::shared_ptr<RankActivity> activity) {
  store->setTimeout(timeout);
  const Met met = [&] {
    activity->set_phase(RankPhase::connecting);
    const ActivityWait wait(*activity, "the meeting of all ranks");
    return meet(identity, *store, device, timeout);
  }();
  return std::make_unique<StoreWorld>(identity, std::move(store), device, timeout, met, std::move(on_lost),
                                      std::move(activity));
}

std::unique_ptr<World> join_world(const RankIdentity& identity, at::Device device,
                                  std::chrono::milliseconds timeout, OnLostRank on_lost,
                                  std::shared_ptr<RankActivity> activity) {
  if (device.is_cuda()) require_nccl();  // refuse before waiting for anyone
  auto store = [&] {
    activity->set_phase(RankPhase::connecting);
    const ActivityWait wait(*activity, "the meeting of all ranks at " + identity.master());
    return connect_store(identity, timeout);
  }();
  return join_world(identity, std::move(store), device, timeout, std::move(on_lost), std::move(activity));
}

}  // namespace trireme
