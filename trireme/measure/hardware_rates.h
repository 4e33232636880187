// Measures a HardwareProfile: every rate of this rank's device, by the engine's kernels, and the links
// between the run's ranks, while all ranks are at work.
//
//   kernels        product_rates.h, attention_rates.h, token_operation_rates.h, in values of 2 and of 4 bytes
//   links          fitted_link.h within a machine and across machines; copies to the host; a disk, if given
//   overhead       a tiny model's steps less the work in them
#pragma once

#include <filesystem>

#include "trireme/comm/world.h"
#include "trireme/engine/engine.h"
#include "trireme/plan/hardware_profile.h"

namespace trireme {

struct HardwareRateOptions {
  double seconds = 60;                     // in all, about
  std::filesystem::path offload_dir = {};  // empty: no disk is measured
};

// Without the overhead. Collective: every rank gets the same profile, of the slowest rank at each piece of
// work.
HardwareProfile measure_hardware(World& world, at::Device device, const HardwareRateOptions& options);

// Sets micro_batch_seconds and step_seconds by steps of a tiny model. Collective.
void measure_overhead(Engine& engine, HardwareProfile& profile);

}  // namespace trireme
