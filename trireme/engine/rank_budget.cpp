#include "trireme/engine/rank_budget.h"

#include <algorithm>
#include <functional>
#include <string>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"
#include "trireme/comm/agreement.h"
#include "trireme/device/gpu_identity.h"
#include "trireme/device/host_memory_limit.h"
#include "trireme/device/memory_budget.h"
#include "trireme/forecast/memory_fit.h"

namespace trireme {
namespace {

int ranks_on_the_machine(const World& world) {
  return std::max(1, world.identity().local_size);
}

// What the user says counts, else what the machine says.
int64_t given_or_left_bytes(const EngineOptions& options) {
  return options.host_memory_limit_bytes > 0 ? options.host_memory_limit_bytes : host_memory_left_bytes();
}

// Ranks of this run that take from the same memory as this one. A GPU serves one process (NCCL refuses two),
// and in it the ranks that are its threads.
int ranks_on_the_device(const World& world, Agreement& agreement, at::Device device) {
  if (device.is_cpu()) return ranks_on_the_machine(world);
  if (world.others_are_absent()) return 1;  // each real rank has a GPU of its own
  // Containers may share the host's name, and count processes and GPUs from the first each.
  std::string name = gpu_identity(device).uuid;
  if (name.empty()) name = cat(host_name(), " process ", ::getpid(), " device ", device.index());
  const auto device_id = static_cast<int64_t>(std::hash<std::string>{}(name));
  const auto of_ranks = agreement.gather_one(device_id);
  return static_cast<int>(std::count(of_ranks.begin(), of_ranks.end(), device_id));
}

int64_t device_budget_bytes(const World& world, Agreement& agreement, const EngineOptions& options) {
  // Collective, so that ranks whose budget is given ask too.
  const int ranks = ranks_on_the_device(world, agreement, options.device);
  if (options.memory_budget_bytes > 0) return options.memory_budget_bytes;
  return memory_budget_bytes(
      options.device,
      options.device.is_cpu() ? given_or_left_bytes(options) : device_memory_left_bytes(options.device),
      ranks);
}

// Of the host's memory, where the ranks compute on a GPU: some of it is filled by what they offload.
int64_t host_budget_bytes(const World& world, const EngineOptions& options) {
  if (options.device.is_cpu()) return MemoryFit::kNoLimit;
  return memory_budget_bytes(at::kCPU, given_or_left_bytes(options), ranks_on_the_machine(world));
}

}  // namespace

std::optional<RankBudget> rank_budget(const World& world, Group& all, const ForecastInputs& inputs,
                                      const EngineOptions& options) {
  const PlannedBatch& batch = options.planned_batch;
  if (options.purpose == Purpose::evaluation || !batch.known() ||
      batch.tokens < inputs.ulysses * inputs.ring ||
      (options.device.is_cpu() && options.recompute.policy != Recompute::automatic))
    return std::nullopt;
  Agreement agreement(all, options.device);
  return RankBudget{device_budget_bytes(world, agreement, options), host_budget_bytes(world, options)};
}

}  // namespace trireme
