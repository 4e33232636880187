#include "trireme/engine/settle_recompute.h"

#include <algorithm>
#include <functional>
#include <unistd.h>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/memory_budget.h"
#include "trireme/engine/memory_shape.h"

namespace trireme {
namespace {

// [ranks][mine.size()]: what every rank has.
std::vector<std::vector<int64_t>> gather(Group& all, at::Device device, const std::vector<int64_t>& mine) {
  const auto width = static_cast<int64_t>(mine.size());
  const at::Tensor row = at::tensor(mine, at::kLong).reshape({1, width}).to(device);
  const std::vector<int64_t> rows(static_cast<size_t>(all.size()), 1);
  const at::Tensor everyone = all_gather(all, row, rows).to(at::kCPU).contiguous();
  std::vector<std::vector<int64_t>> of_ranks;
  of_ranks.reserve(rows.size());
  const auto* values = everyone.const_data_ptr<int64_t>();
  for (int rank = 0; rank < all.size(); ++rank)
    of_ranks.emplace_back(values + rank * width, values + (rank + 1) * width);
  return of_ranks;
}

// Ranks of this run that take from the same memory as this one. A GPU serves one process (NCCL refuses two), and in it
// the ranks that are its threads.
int ranks_on_the_device(const World& world, Group& all, at::Device device) {
  if (device.is_cpu()) return std::max(1, world.place().local_size);
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  const std::vector<int64_t> mine{static_cast<int64_t>(std::hash<std::string>{}(host)),
                                  static_cast<int64_t>(::getpid()), device.index()};
  const auto places = gather(all, device, mine);
  return static_cast<int>(std::count(places.begin(), places.end(), mine));
}

int64_t budget_bytes(const World& world, Group& all, const EngineOptions& options) {
  // Collective, so that ranks whose budget is given ask too.
  const int ranks = ranks_on_the_device(world, all, options.device);
  if (options.memory_budget_bytes > 0) return options.memory_budget_bytes;
  const bool told = options.device.is_cpu() && options.host_memory_limit_bytes > 0;
  return memory_budget_bytes(
      options.device, told ? options.host_memory_limit_bytes : device_memory_left_bytes(options.device),
      ranks);
}

// Of two ranks' choices, the one that decides: fewer layers, then the fuller memory.
bool has_less_room(const RecomputeChoice& a, const RecomputeChoice& b) {
  if (a.keeping_layers != b.keeping_layers) return a.keeping_layers < b.keeping_layers;
  return static_cast<double>(a.expected_bytes) * static_cast<double>(b.budget_bytes) >
         static_cast<double>(b.expected_bytes) * static_cast<double>(a.budget_bytes);
}

}  // namespace

std::optional<RecomputeChoice> settle_recompute(const World& world, Group& all, const MemoryShape& shape,
                                                EngineOptions& options) {
  if (options.recompute != Recompute::automatic) return std::nullopt;
  const PlannedBatch& batch = options.planned_batch;
  TRIREME_ASSERT(batch.known() || options.memory_budget_bytes == 0,
                 "a memory budget was given without the largest micro-batch that it is for");
  const bool evaluates = options.purpose == Purpose::evaluation;
  options.recompute = evaluates ? Recompute::full : Recompute::keep_attention;
  // Batches of fewer tokens than ranks are refused when they come.
  if (evaluates || !batch.known() || batch.tokens < shape.ulysses * shape.ring) return std::nullopt;

  const MemoryShape planned = with_batch(shape, batch.samples, batch.tokens);
  const RecomputeChoice mine = choose_recompute(planned, budget_bytes(world, all, options));
  // Also the meeting point before which no rank allocates what others would then not find left.
  const auto of_ranks =
      gather(all, options.device, {mine.keeping_layers, mine.expected_bytes, mine.budget_bytes});
  std::vector<RecomputeChoice> choices;
  choices.reserve(of_ranks.size());
  for (const auto& row : of_ranks) choices.push_back({row[0], mine.layers, row[1], row[2]});
  const RecomputeChoice choice = *std::min_element(choices.begin(), choices.end(), has_less_room);
  options.recompute = choice.policy();
  options.keep_fraction = choice.keep_fraction();
  return choice;
}

std::string shortage_warning(const RecomputeChoice& choice, const MemoryShape& shape) {
  if (choice.fits()) return "";
  std::vector<MemoryOption> options = memory_options(shape);
  std::erase_if(options, [](const MemoryOption& option) { return option.space != MemorySpace::device; });
  const std::string advice = memory_advice(memory_forecast(shape).peak, options);
  return cat("warning: by the memory formulas a rank comes to ", format_bytes(choice.expected_bytes),
             " where ", format_bytes(choice.budget_bytes),
             " can be planned with, even with --recompute full; the run may end ", "out of memory.",
             advice.empty() ? std::string() : cat(" What would help, the largest saving first: ", advice));
}

}  // namespace trireme
