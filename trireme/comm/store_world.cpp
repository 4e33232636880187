// A World whose ranks met in a store: what they learn about each other there, and the backend that each group
// gets by it.
#include <algorithm>
#include <numeric>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/listening_socket.h"
#include "trireme/base/machine_identity.h"
#include "trireme/comm/backend_library.h"
#include "trireme/comm/failure.h"
#include "trireme/comm/gloo_backend.h"
#include "trireme/comm/gpu_of_rank.h"
#include "trireme/comm/heartbeat.h"
#include "trireme/comm/memory_reach.h"
#include "trireme/comm/nccl_backend.h"
#include "trireme/comm/post_board_backend.h"
#include "trireme/comm/process_post_board.h"
#include "trireme/comm/run_store.h"
#include "trireme/comm/world.h"
#include "trireme/device/gpu_identity.h"

namespace trireme {
namespace {

// What ranks learn about each other when they have met.
struct Met {
  int common_machine_ranks = 1;
  bool one_network = true;  // all reach each other over the loopback interface
  MemoryReach memory = {};
};

// Where ranks of other machines reach this one; empty: as its host name says, which may be its loopback
// interface.
std::string address_for_others(c10d::Store& store) {
  const auto* run_store = dynamic_cast<const RunStore*>(&store);
  const std::string address = run_store == nullptr ? "" : run_store->local_address();
  return is_loopback(address) ? "" : address;
}

// A rank may be connected before its peers are. If it used and closed the group before they are, they would
// find closed connections.
void wait_until_all_connected(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  const auto key = [](int of) { return "connected/" + std::to_string(of); };
  store.set(key(rank), "1");
  std::vector<std::string> keys;
  keys.reserve(static_cast<size_t>(size));
  for (int peer = 0; peer < size; ++peer) keys.push_back(key(peer));
  store.wait(keys, timeout);
}

// Ranks that met in a store. Each backend has a separate key prefix in the store.
class StoreWorld : public World {
 public:
  StoreWorld(const RankIdentity& identity, c10::intrusive_ptr<c10d::Store> store, JoinOptions options,
             Met met)
      : World(identity, options.timeout, met.common_machine_ranks, std::move(options.activity)),
        store_(std::move(store)),
        device_(options.device),
        asked_(options.backend),
        memory_(std::move(met.memory)),
        address_(met.one_network ? "127.0.0.1" : address_for_others(*store_)) {
    if (identity.size == 1 || !device_.is_cuda() || !options.on_lost) return;
    HeartbeatPace pace;
    pace.silence = std::min(pace.silence, timeout());
    pace.period = std::min(pace.period, pace.silence / 10);
    auto connection = store_->clone();
    connection->setTimeout(pace.silence);  // rank 0's machine may vanish without notice
    heartbeat_ = std::make_unique<Heartbeat>(
        c10::make_intrusive<c10d::PrefixStore>(heartbeat_prefix(identity.attempt), std::move(connection)),
        identity.rank, identity.size, pace, std::move(options.on_lost));
  }

 private:
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& key, const std::string& name,
                                            const GroupMembership& group) override {
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>(cat("trireme/", identity().attempt, "/", key), store_);
    const int size = static_cast<int>(group.world_ranks.size());
    auto backend = device_.is_cuda()
                       ? make_nccl_backend(store, name, group.rank, group.world_ranks, device_, timeout())
                   : memory_.why_not(group.world_ranks).empty()
                       ? make_memory_backend(*store, group)
                       : make_gloo_backend(store, group.rank, size, address_, timeout());
    // NCCL itself would wait for a rank that does not come without a limit, and unseen by its watchdog.
    wait_until_all_connected(*store, group.rank, size, timeout());
    // Other groups are connected by connect_exchanges, or have nothing to exchange.
    if (device_.is_cuda() && size == this->size()) backend->eagerConnectSingleDevice(device_);
    return backend;
  }

  c10::intrusive_ptr<c10d::Backend> make_memory_backend(c10d::Store& store, const GroupMembership& group) {
    std::vector<std::shared_ptr<const PeerProcess>> peers;
    peers.reserve(group.world_ranks.size());
    for (const int rank : group.world_ranks) peers.push_back(memory_.process(rank));
    auto board = std::make_unique<ProcessPostBoard>(store, group.rank, group.world_ranks, std::move(peers));
    return make_post_board_backend(kMemoryBackend, std::move(board), timeout());
  }

  std::string describe_exchanges() const override {
    if (size() == 1) return {};
    if (device_.is_cuda()) return "NCCL";
    if (asked_ == ExchangeBackend::gloo) return "Gloo (--ddp_backend gloo)";
    const std::string why = memory_.why_not(identity().all_ranks());
    if (why.empty()) return "memory";
    // Who started the ranks may not say which of them share a machine, but they found out.
    const std::vector<int> neighbours = memory_.ranks_of_this_machine();
    if (neighbours.size() < 2) return cat("Gloo (", why, ")");
    const std::string why_not_here = memory_.why_not(neighbours);
    return why_not_here.empty() ? "memory within a machine, Gloo between machines"
                                : cat("Gloo (", why_not_here, ")");
  }

  c10::intrusive_ptr<c10d::Store> store_;
  at::Device device_;
  ExchangeBackend asked_;
  MemoryReach memory_;
  std::string address_;                   // for Gloo to listen at
  std::unique_ptr<Heartbeat> heartbeat_;  // only over NCCL: other backends' collectives end by themselves
};

// Equal on ranks that reach each other over the loopback interface. If that is unknown, ranks with the same
// machine name do not count as one machine.
std::string network_identity() {
  const std::string known = machine_with_namespaces({"net"});
  return known.empty() ? cat(host_name(), " process ", ::getpid()) : known;
}

void check_backend(const JoinOptions& options) {
  const bool on_gpu = options.device.is_cuda(), nccl = options.backend == ExchangeBackend::nccl;
  if (options.backend != ExchangeBackend::automatic && nccl != on_gpu)
    throw ConfigError(
        cat("--ddp_backend ", name_of(options.backend), " with --device ",
            on_gpu ? "cuda: ranks on GPUs exchange by nccl" : "cpu: expected auto, memory or gloo"));
}

// Every rank's `of_rank`, by rank: before there are groups. Collective, with a key that was not used before.
// Rank 0 reads all messages and writes them as one list, so the store answers few requests per rank.
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
Met meet(const RankIdentity& identity, c10d::Store& store, const JoinOptions& options) {
  if (identity.size == 1) return {};
  const bool on_gpu = options.device.is_cuda();
  std::optional<MemoryProof> proof;
  if (!on_gpu && options.backend != ExchangeBackend::gloo) proof.emplace();
  Json of_rank = {{"local_size", identity.local_size},
                  {"network", network_identity()},
                  {"memory", proof ? proof->card() : Json()}};
  if (on_gpu) {
    const GpuIdentity gpu = gpu_identity(options.device);
    of_rank["gpu"] = {{"uuid", gpu.uuid}, {"bus", gpu.bus}, {"host", host_name()}};
  }
  const FailureContext context{"meeting the other ranks", identity.rank, identity.all_ranks(),
                               options.timeout};
  const std::string key = cat("trireme/", identity.attempt, "/meeting");
  const auto tell = [&](const std::string& round, const Json& told) {
    return rethrow_as_comm_error(context, [&] { return tell_everyone(store, identity, key + round, told); });
  };
  const std::vector<Json> of_ranks = tell("", of_rank);
  Met met{identity.local_size, true};
  std::vector<std::optional<RankGpu>> gpus(of_ranks.size());
  std::vector<Json> cards;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const Json& told = of_ranks[rank];
    met.common_machine_ranks = std::gcd(met.common_machine_ranks, told.at("local_size").get<int>());
    met.one_network = met.one_network && told.at("network") == of_rank.at("network");
    cards.push_back(told.at("memory"));
    if (told.contains("gpu"))
      gpus[rank] = RankGpu{told["gpu"]["uuid"], told["gpu"]["bus"], told["gpu"]["host"]};
  }
  check_gpus(gpus);
  if (on_gpu) return met;
  met.memory = MemoryReach(identity.rank, cards);
  met.memory.hear(tell("/memory", met.memory.found()));
  const std::string why = met.memory.why_not(identity.all_ranks());
  if (options.backend == ExchangeBackend::memory && !why.empty())
    throw ConfigError(cat("--ddp_backend memory: ", why,
                          "; use --ddp_backend auto, which takes Gloo where memory cannot be read"));
  return met;
}

}  // namespace

std::unique_ptr<World> join_world(const RankIdentity& identity, c10::intrusive_ptr<c10d::Store> store,
                                  JoinOptions options) {
  check_backend(options);
  store->setTimeout(options.timeout);
  Met met = [&] {
    options.activity->set_phase(RankPhase::connecting);
    const ActivityWait wait(*options.activity, "the meeting of all ranks");
    return meet(identity, *store, options);
  }();
  return std::make_unique<StoreWorld>(identity, std::move(store), std::move(options), std::move(met));
}

}  // namespace trireme
