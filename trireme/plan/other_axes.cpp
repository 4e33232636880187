#include "trireme/plan/other_axes.h"

#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/plan/lacking_memory.h"
#include "trireme/plan/planned_inputs.h"

namespace trireme {
namespace {

constexpr int kManyDevices = 64, kHighDegree = 32;

// With weights, gradients and optimizer sharded over all devices, and in `where`.
ForecastInputs sharded_inputs(const PlanRequest& request, const Planned& best, Offload where) {
  Configuration sharded = best.configuration;
  sharded.zero = 3;
  sharded.offload.parameters = sharded.offload.optimizer = where;
  sharded.offload.activations = Offload::none;
  return planned_inputs(request, sharded, best.tokens(), /*sp_rank=*/0);
}

// Where they are on the devices and do not fit there; empty: they do.
std::string advice_on_state(const PlanRequest& request, const Planned& best) {
  const Configuration& c = best.configuration;
  if (c.offload.parameters != Offload::none || c.offload.optimizer != Offload::none) return "";
  const ForecastInputs inputs = sharded_inputs(request, best, Offload::none);
  const int64_t state = parameter_bytes(inputs) + gradient_bytes(inputs) + optimizer_bytes(inputs),
                limit = best.memory.limits.device_bytes;
  if (state <= limit) return "";
  std::string text =
      cat("weights, gradients and optimizer alone take ", format_bytes(state), " of ", format_bytes(limit),
          " on each device with ZeRO 3 over ", c.ranks(),
          ". Others split such models by tensor and pipeline parallelism, which are not built here: they "
          "shard no more than ZeRO 3 does, so more GPUs help as much");
  if (best.memory.limits.host_bytes > 0 && request.hardware.can_offload_to(Offload::cpu) &&
      host_can_step(inputs, request.hardware)) {
    ForecastInputs on_host = sharded_inputs(request, best, Offload::cpu);
    text += cat(". With --zero 3, --offload_optimizer cpu and --offload_params cpu they take ",
                host_share_text(request, c.ranks(), planned_memory(request, on_host).host_bytes));
  }
  return text;
}

}  // namespace

std::vector<std::string> advice_on_other_axes(const PlanRequest& request, const Planned& best) {
  std::vector<std::string> advice;
  const Configuration& c = best.configuration;
  if (std::string text = advice_on_state(request, best); !text.empty()) advice.push_back(std::move(text));
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
