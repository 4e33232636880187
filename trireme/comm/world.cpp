#include "trireme/comm/world.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/failure.h"
#include "trireme/comm/gloo_backend.h"
#include "trireme/comm/gpu_of_rank.h"
#include "trireme/comm/heartbeat.h"
#include "trireme/comm/nccl_backend.h"
#include "trireme/comm/owned_backend.h"
#include "trireme/comm/store_exchange.h"
#include "trireme/device/gpu_identity.h"

namespace trireme {

namespace {

// InternalError when this rank is in none of the groups, or a rank in two of them.
GroupPlace find_group(const World& world, const std::string& name,
                      const std::vector<std::vector<int>>& members) {
  std::set<int> seen;
  GroupPlace found;
  bool in_one = false;
  for (size_t index = 0; index < members.size(); ++index) {
    for (size_t place = 0; place < members[index].size(); ++place) {
      const int member = members[index][place];
      TRIREME_ASSERT(member >= 0 && member < world.size(), "group '", name, "' names rank ", member, " of ",
                     world.size());
      TRIREME_ASSERT(seen.insert(member).second, "group '", name, "' names rank ", member, " twice");
      if (member != world.rank()) continue;
      in_one = true;
      found = {static_cast<int>(index), static_cast<int>(place), members[index]};
    }
  }
  TRIREME_ASSERT(in_one, "group '", name, "' does not have rank ", world.rank());
  return found;
}

}  // namespace

std::unique_ptr<Group> World::make_group(const std::string& name,
                                         const std::vector<std::vector<int>>& members, Queue queue) {
  const GroupPlace at = find_group(*this, name, members);
  const std::string key = cat(groups_made_++, "/", name, "/", at.index);
  std::shared_ptr<c10d::Backend> backend;
  if (at.world_ranks.size() > 1) {
    std::weak_ptr<c10d::Backend>& known = backends_[{queue, at.world_ranks}];
    backend = known.lock();
    if (backend == nullptr) {
      const FailureContext context{cat("connecting group '", name, "'"), rank(), at.world_ranks, timeout()};
      known = backend = own_backend(rethrow_as_comm_error(context, [&] { return connect(key, name, at); }));
    }
  }
  return std::make_unique<Group>(name, std::move(backend), at.world_ranks, at.rank, timeout());
}

namespace {

// Ranks that met in a store; each backend has its own names in it.
class StoreWorld : public World {
 public:
  StoreWorld(const RankPlace& place, c10::intrusive_ptr<c10d::Store> store, Transport transport,
             at::Device device, std::chrono::milliseconds timeout, int least_machine_ranks,
             OnLostRank on_lost)
      : World(place, timeout, least_machine_ranks),
        store_(std::move(store)),
        transport_(transport),
        device_(device) {
    if (place.size == 1 || transport != Transport::nccl || !on_lost) return;
    HeartbeatPace pace;
    pace.silence = std::min(pace.silence, timeout);
    pace.period = std::min(pace.period, pace.silence / 10);
    const std::string prefix = cat("trireme/", place.attempt, "/heartbeat");
    heartbeat_ = std::make_unique<Heartbeat>(c10::make_intrusive<c10d::PrefixStore>(prefix, store_->clone()),
                                             place.rank, place.size, pace, std::move(on_lost));
  }

 private:
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& key, const std::string& name,
                                            const GroupPlace& group) override {
    auto store = c10::make_intrusive<c10d::PrefixStore>(cat("trireme/", place().attempt, "/", key), store_);
    if (transport_ == Transport::nccl)
      return make_nccl_backend(store, name, group.rank, group.world_ranks, device_, timeout());
    return make_gloo_backend(store, group.rank, static_cast<int>(group.world_ranks.size()),
                             place().local_size == place().size, timeout());
  }

  c10::intrusive_ptr<c10d::Store> store_;
  Transport transport_;
  at::Device device_;
  std::unique_ptr<Heartbeat> heartbeat_;  // over NCCL alone: other backends' collectives end by themselves
};

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::vector<int> all_ranks(const RankPlace& place) {
  std::vector<int> ranks(static_cast<size_t>(place.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The least number of ranks of one machine, once it is known that each rank has a GPU of its own, or none has.
int meet(const RankPlace& place, c10d::Store& store, Transport transport, at::Device device,
         std::chrono::milliseconds timeout) {
  if (place.size == 1) return 1;
  Json mine = {{"local_size", place.local_size}};
  if (transport == Transport::nccl) {
    const GpuIdentity gpu = gpu_identity(device);
    mine["gpu"] = {{"uuid", gpu.uuid}, {"bus", gpu.bus}, {"host", host_name()}};
  }
  const FailureContext context{"meeting the other ranks", place.rank, all_ranks(place), timeout};
  const std::vector<Json> of_ranks = rethrow_as_comm_error(context, [&] {
    return tell_everyone(store, place.rank, place.size, cat("trireme/", place.attempt, "/meeting"), mine);
  });
  int least = place.local_size;
  std::vector<std::optional<RankGpu>> gpus(of_ranks.size());
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const Json& told = of_ranks[rank];
    least = std::min(least, told.at("local_size").get<int>());
    if (told.contains("gpu"))
      gpus[rank] = RankGpu{told["gpu"]["uuid"], told["gpu"]["bus"], told["gpu"]["host"]};
  }
  check_gpus(gpus);
  return least;
}

Transport choose_transport(Transport transport, at::Device device) {
  if (transport == Transport::threads) {
    throw ConfigError(
        "the transport 'threads' joins ranks that are threads of one process; processes need gloo or nccl");
  }
  if (transport == Transport::nccl && !device.is_cuda()) {
    throw ConfigError("the transport 'nccl' moves tensors of CUDA devices only; on the CPU use gloo");
  }
  if (transport == Transport::automatic) transport = device.is_cuda() ? Transport::nccl : Transport::gloo;
  if (transport == Transport::nccl) require_nccl();
  return transport;
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
  const FailureContext context{
      cat("meeting the other ranks at ", place.master_address, ":", place.master_port), place.rank,
      all_ranks(place), timeout};
  return rethrow_as_comm_error(
      context, [&] { return c10::make_intrusive<c10d::TCPStore>(place.master_address, options); });
}

}  // namespace

std::unique_ptr<World> join_world(const RankPlace& place, c10::intrusive_ptr<c10d::Store> store,
                                  Transport transport, at::Device device, std::chrono::milliseconds timeout,
                                  OnLostRank on_lost) {
  const Transport chosen = choose_transport(transport, device);
  store->setTimeout(timeout);
  const int least_machine_ranks = meet(place, *store, chosen, device, timeout);
  return std::make_unique<StoreWorld>(place, std::move(store), chosen, device, timeout, least_machine_ranks,
                                      std::move(on_lost));
}

std::unique_ptr<World> join_world(const RankPlace& place, Transport transport, at::Device device,
                                  std::chrono::milliseconds timeout, OnLostRank on_lost) {
  const Transport chosen = choose_transport(transport, device);  // refuse before waiting for anyone
  return join_world(place, connect_store(place, timeout), chosen, device, timeout, std::move(on_lost));
}

}  // namespace trireme
