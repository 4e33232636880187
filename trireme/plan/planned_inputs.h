// A configuration as what memory forecast and step time are given, without torch. The engine fills the same
// struct from its options (engine/make_forecast_inputs.cpp), by the same rules of forecast/; a test holds
// both equal (tests/cli/plan_test.cpp).
#pragma once

#include "trireme/plan/plan_request.h"
#include "trireme/plan/step_work.h"

namespace trireme {

// Of rank `sp_rank` of the first data-parallel group, whose shares of the stores are the largest, with
// samples of `tokens`. Throws ConfigError as share_heads does.
ForecastInputs planned_inputs(const PlanRequest& request, const Configuration& configuration, int64_t tokens,
                              int sp_rank);

// Of the ranks that share a sample, the one with the most heads, key/value heads and tokens: it holds most,
// and the others wait for it.
int fullest_sequence_rank(const ModelSizes& model, const Configuration& configuration);

// Of that rank.
PlannedStep planned_step(const PlanRequest& request, const Configuration& configuration, int64_t tokens);

// Whether the optimizer can be offloaded: the profile has the rate of a host's steps, and there is something
// to offload, as check_stored_states of engine/check_options.h asks for.
bool host_can_step(const ForecastInputs& inputs, const HardwareProfile& hardware);

}  // namespace trireme
