#include "trireme/plan/step_causes.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {
namespace {

std::string cause_of(WorkKind kind) {
  if (is_attention(kind)) return "attention";
  if (counts_flops(kind)) return "matrix products";
  return kind == WorkKind::optimizer ? "the optimizer's step" : "token-wise operations";
}

std::string cause_of(TrafficKind kind) {
  switch (kind) {
    case TrafficKind::ulysses:
      return "exchanges of Ulysses";
    case TrafficKind::columns:
      return "exchanges of DeltaNets";
    case TrafficKind::ring:
      return "exchanges of the ring";
    case TrafficKind::gathered_parameters:
      return "parameters that are gathered";
    case TrafficKind::summed_gradients:
      return "sums of gradients";
    case TrafficKind::traded_parameters:
      return "new parameters for all ranks";
    case TrafficKind::offloaded_activations:
      return "offloaded activations";
    case TrafficKind::offloaded_parameters:
      return "offloaded parameters";
    case TrafficKind::offloaded_gradients:
      return "gradients to the host, and new values back";
    case TrafficKind::offloaded_optimizer:
      return "the optimizer's states on a disk";
  }
  throw InternalError("a kind of traffic has no words");
}

void add_cause(std::vector<CauseSeconds>& all, const std::string& cause, double seconds) {
  const auto known = std::ranges::find(all, cause, &CauseSeconds::cause);
  if (known == all.end())
    all.push_back({cause, seconds});
  else
    known->seconds += seconds;
}

}  // namespace

std::vector<CauseSeconds> seconds_by_cause(const StepTime& time) {
  std::vector<CauseSeconds> causes;
  for (const KindSeconds& kind : time.compute) add_cause(causes, cause_of(kind.kind), kind.seconds);
  for (const TrafficSeconds& traffic : time.traffic)
    add_cause(causes, cause_of(traffic.kind) + (traffic.crosses_machines ? " between machines" : ""),
              traffic.waited_seconds);
  add_cause(causes, "the optimizer on the host", time.host_optimizer_waited_seconds);
  add_cause(causes, "what each step takes beside its work", time.overhead_seconds);
  return causes;
}

}  // namespace trireme
