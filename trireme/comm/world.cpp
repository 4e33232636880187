#include "trireme/comm/world.h"

#include <set>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/listening_socket.h"
#include "trireme/base/parse_whole.h"
#include "trireme/comm/failure.h"
#include "trireme/comm/nccl_backend.h"
#include "trireme/comm/owned_backend.h"
#include "trireme/comm/run_store.h"

namespace trireme {

namespace {

// Throws InternalError if this rank is in none of the groups, or any rank is in two of them.
GroupMembership find_group(const World& world, const std::string& name,
                           const std::vector<std::vector<int>>& members) {
  std::set<int> known_members;
  std::optional<GroupMembership> found;
  for (size_t index = 0; index < members.size(); ++index) {
    for (size_t rank = 0; rank < members[index].size(); ++rank) {
      const int member = members[index][rank];
      TRIREME_ASSERT(member >= 0 && member < world.size(), "group '", name, "' names rank ", member, " of ",
                     world.size());
      TRIREME_ASSERT(known_members.insert(member).second, "group '", name, "' names rank ", member, " twice");
      if (member == world.rank()) found = {static_cast<int>(index), static_cast<int>(rank), members[index]};
    }
  }
  TRIREME_ASSERT(found, "group '", name, "' does not have rank ", world.rank());
  return *found;
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
  const int port = parse_whole<int>(told).value_or(0);
  if (port < 1 || port > 65535)
    throw ConfigError(cat("torchrun's agent at ", identity.master(), " tells '", printable(told),
                          "', expected the port of rank 0's store; another program writes to "
                          "the agent's store: choose another MASTER_PORT (--master-port)"));
  return port;
}

std::shared_ptr<StoreServer> open_store(const RankIdentity& identity, std::chrono::milliseconds timeout) {
  if (identity.rank != 0) return nullptr;
  raise_limit_of_open_files();  // the store has some connections from each rank
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

std::unique_ptr<World> join_world(const RankIdentity& identity, JoinOptions options) {
  if (options.device.is_cuda()) require_nccl();  // refuse before waiting for anyone
  auto store = [&] {
    options.activity->set_phase(RankPhase::connecting);
    const ActivityWait wait(*options.activity, "the meeting of all ranks at " + identity.master());
    return connect_store(identity, options.timeout);
  }();
  return join_world(identity, std::move(store), std::move(options));
}

}  // namespace trireme
