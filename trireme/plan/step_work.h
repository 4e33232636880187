// The work of one rank in one optimizer step, counted from what the memory forecast is given: products,
// attention, token-wise operations, the optimizer, and what travels. The counts follow the passes of
// engine/layer_runner.cpp and engine/model_executor.cpp, second forwards included; no torch.
//
//   r = B s tokens of a micro-batch on this rank; FLOPs of a product of [r, k] and [k, n]: 2 r k n, and in
//   backward twice that. FLOPs of attention: 4 D forward and 10 D backward a pair of query and key, for h
//   heads (arXiv 2307.08691, section 3.1).
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/enum_names.h"
#include "trireme/plan/hardware_profile.h"
#include "trireme/plan/planned_step.h"

namespace trireme {

struct WorkItem {
  WorkKind kind{};
  double size = 0;
  double width = 0;
  double amount = 0;
};

// What travels, by what waits for it.
enum class TrafficKind : uint8_t {
  ulysses,                // attention's all-to-alls
  columns,                // a DeltaNet's all-to-alls, between all ranks that share a sample
  ring,                   // keys and values, and their gradients, between ring ranks
  gathered_parameters,    // ZeRO 3: fetched one unit ahead
  summed_gradients,       // reduce-scatter, or all-reduce with ZeRO 0
  traded_parameters,      // ZeRO 1 and 2: new values after a step
  offloaded_activations,  // to the host or a disk, and back: beside compute
  offloaded_parameters,
  offloaded_gradients,  // to where the optimizer is, and the new values back
  offloaded_optimizer,  // moments and masters, from a disk and back to it
};
constexpr auto enum_names(TrafficKind) {
  using enum TrafficKind;
  return std::to_array<EnumName<TrafficKind>>({{ulysses, "ulysses"},
                                               {columns, "columns"},
                                               {ring, "ring"},
                                               {gathered_parameters, "gathered_parameters"},
                                               {summed_gradients, "summed_gradients"},
                                               {traded_parameters, "traded_parameters"},
                                               {offloaded_activations, "offloaded_activations"},
                                               {offloaded_parameters, "offloaded_parameters"},
                                               {offloaded_gradients, "offloaded_gradients"},
                                               {offloaded_optimizer, "offloaded_optimizer"}});
}

// Else between a device and its host or disk.
constexpr bool is_between_ranks(TrafficKind kind) {
  return kind <= TrafficKind::traded_parameters;
}

struct TrafficItem {
  TrafficKind kind{};
  double calls = 0;
  double bytes = 0;  // sent by this rank; of what goes and comes back, one way
};

// Sums that each micro-batch makes over ranks go to the host at once, and come back for the next one's.
inline bool gradients_leave_in_backward(const ForecastInputs& inputs) {
  return inputs.zero >= 2 || inputs.update_in_backward;
}

struct StepWork {
  std::vector<WorkItem> items;          // one for each kind, size and width
  std::vector<WorkItem> forward_items;  // of them, what the first forwards are
  std::vector<TrafficItem> traffic;     // one for each kind
  double forward_gathered_share = 0;    // of gathered parameters, what the first forwards fetch
  double host_optimizer_elements = 0;   // stepped on the host
};
// Of rank inputs.rank.
StepWork step_work(const PlannedStep& step);

}  // namespace trireme
