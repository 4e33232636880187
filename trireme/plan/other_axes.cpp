#include "trireme/plan/other_axes.h"

#include <algorithm>

#include "trireme/base/sizes.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/plan/planned_inputs.h"

namespace trireme {
namespace {

constexpr int kManyDevices = 64, kHighDegree = 32;

// Of weights, gradients and optimizer, sharded over all devices and nothing offloaded.
int64_t sharded_state_bytes(const PlanRequest& request, const Configuration& configuration) {
  Configuration sharded = configuration;
  sharded.zero = 3;
  sharded.offload.parameters = sharded.offload.optimizer = Offload::none;
  const ForecastInputs inputs =
      planned_inputs(request, sharded, std::max(request.tokens, int64_t{1} * sharded.sequence_ranks()), 0);
  return parameter_bytes(inputs) + gradient_bytes(inputs) + optimizer_bytes(inputs);
}

}  // namespace

std::vector<std::string> advice_on_other_axes(const PlanRequest& request, const Planned& best) {
  std::vector<std::string> advice;
  const Configuration& c = best.configuration;
  const int64_t state = sharded_state_bytes(request, c),
                limit = memory_limits(request, c.ranks()).device_bytes;
  if (state > limit)
    advice.push_back(
        cat("weights, gradients and optimizer alone take ", format_bytes(state), " of ", format_bytes(limit),
            " on each device with ZeRO 3 over ", c.ranks(),
            ". Others split such models by tensor and pipeline parallelism, which are not built here: ",
            "they shard no more than ZeRO 3 does, so more GPUs, or --offload_optimizer and --offload_params, "
            "help as much"));
  if (c.ranks() >= kManyDevices && c.sequence_ranks() >= kHighDegree)
    advice.push_back(cat(
        "from ", kManyDevices, " GPUs on with ", c.sequence_ranks(),
        " ranks a sample, others add tensor parallelism inside each machine, to keep the exchanges of "
        "a sample there. It is not built here: on long sequences Ulysses sends less than tensor parallelism, "
        "whose exchanges do not fall with the degree (arXiv 2309.14509, section 3.2); --ring keeps Ulysses "
        "inside a machine"));
  return advice;
}

}  // namespace trireme
