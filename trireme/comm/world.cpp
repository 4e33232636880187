#include "trireme/comm/world.h"

#include <set>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/failure.h"
#include "trireme/comm/gloo_backend.h"
#include "trireme/comm/nccl_backend.h"

namespace trireme {

GroupPlace World::find_group(const std::string& name, const std::vector<std::vector<int>>& members) const {
  std::set<int> seen;
  GroupPlace found;
  bool in_one = false;
  for (size_t index = 0; index < members.size(); ++index) {
    for (size_t place = 0; place < members[index].size(); ++place) {
      const int member = members[index][place];
      TRIREME_ASSERT(member >= 0 && member < size(), "group '", name, "' names rank ", member, " of ",
                     size());
      TRIREME_ASSERT(seen.insert(member).second, "group '", name, "' names rank ", member, " twice");
      if (member != rank()) continue;
      in_one = true;
      found = {static_cast<int>(index), static_cast<int>(place), members[index]};
    }
  }
  TRIREME_ASSERT(in_one, "group '", name, "' does not have rank ", rank());
  return found;
}

namespace {

// Ranks that met in a store; each group has its own backend and its own names in the store.
class StoreWorld : public World {
 public:
  StoreWorld(const RankPlace& place, c10::intrusive_ptr<c10d::Store> store, Transport transport,
             std::chrono::milliseconds timeout)
      : World(place, timeout), store_(std::move(store)), transport_(transport) {}

  std::unique_ptr<Group> make_group(const std::string& name,
                                    const std::vector<std::vector<int>>& members) override {
    const GroupPlace at = find_group(name, members);
    const std::string prefix =
        cat("trireme/", place().attempt, "/", groups_made_++, "/", name, "/", at.index);
    c10::intrusive_ptr<c10d::Backend> backend;
    if (at.world_ranks.size() > 1) {
      const FailureContext context{cat("connecting group '", name, "'"), rank(), at.world_ranks, timeout()};
      backend = rethrow_as_comm_error(context, [&] { return connect(prefix, at); });
    }
    return std::make_unique<Group>(name, backend, at.world_ranks, at.rank, timeout());
  }

 private:
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& prefix, const GroupPlace& at) {
    auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, store_);
    const int size = static_cast<int>(at.world_ranks.size());
    if (transport_ == Transport::nccl)
      return make_nccl_backend(store, at.rank, size, place().local_rank, timeout());
    return make_gloo_backend(store, at.rank, size, place().local_size == place().size, timeout());
  }

  c10::intrusive_ptr<c10d::Store> store_;
  Transport transport_;
  int groups_made_ = 0;
};

Transport choose_transport(Transport transport, bool cuda) {
  if (transport == Transport::threads) {
    throw ConfigError(
        "the transport 'threads' joins ranks that are threads of one process; processes need gloo or nccl");
  }
  if (transport == Transport::nccl && !cuda) {
    throw ConfigError("the transport 'nccl' moves tensors of CUDA devices only; on the CPU use gloo");
  }
  if (transport != Transport::automatic) return transport;
  return cuda ? Transport::nccl : Transport::gloo;
}

c10::intrusive_ptr<c10d::Store> connect_store(const RankPlace& place, std::chrono::milliseconds timeout) {
  if (place.size == 1) return c10::make_intrusive<c10d::HashStore>();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.master_port);
  options.isServer = place.rank == 0 && !place.agent_has_store;
  options.numWorkers = static_cast<size_t>(place.size);
  options.waitWorkers =
      !place.agent_has_store;  // an agent's store counts the workers of earlier attempts too
  options.timeout = timeout;
  if (options.isServer && place.master_listen_fd >= 0) options.masterListenFd = place.master_listen_fd;
  std::vector<int> everyone;
  for (int rank = 0; rank < place.size; ++rank) everyone.push_back(rank);
  const FailureContext context{
      cat("meeting the other ranks at ", place.master_address, ":", place.master_port), place.rank, everyone,
      timeout};
  return rethrow_as_comm_error(
      context, [&] { return c10::make_intrusive<c10d::TCPStore>(place.master_address, options); });
}

}  // namespace

std::unique_ptr<World> join_world(const RankPlace& place, c10::intrusive_ptr<c10d::Store> store,
                                  Transport transport, bool cuda, std::chrono::milliseconds timeout) {
  const Transport chosen = choose_transport(transport, cuda);
  if (chosen == Transport::nccl) require_nccl();
  store->setTimeout(timeout);
  return std::make_unique<StoreWorld>(place, std::move(store), chosen, timeout);
}

std::unique_ptr<World> join_world(const RankPlace& place, Transport transport, bool cuda,
                                  std::chrono::milliseconds timeout) {
  const Transport chosen = choose_transport(transport, cuda);  // refuse before waiting for anyone
  if (chosen == Transport::nccl) require_nccl();
  return join_world(place, connect_store(place, timeout), chosen, cuda, timeout);
}

}  // namespace trireme
