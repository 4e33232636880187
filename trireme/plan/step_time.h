// Seconds of one optimizer step on given hardware: a rank's work at its rates, and of what travels the share
// that compute does not hide.
//
//   compute                 sum of amount / rate
//   ulysses                 waited for; with C head chunks all but one of C is hidden behind attention
//   ring                    hidden behind attention; gathered keys are waited for
//   gathered parameters     hidden on a GPU as far as the pass goes that they are for, for they come one unit
//                           ahead
//   summed gradients        hidden on a GPU as far as backward goes, for they are waited for one unit later;
//                           with ZeRO 0 and 1 as far as the last micro-batch's does. With updates in backward
//                           waited for
//   traded parameters       hidden on a GPU as far as the first forward goes, for they come one unit ahead;
//                           waited for with the optimizer on the host
//   offloaded               hidden on a GPU: activations leave beside forward and come back beside backward,
//                           sums of ZeRO 2 and 3 go to the host beside backward; the host's optimizer works
//                           beside the next step's first forward (with updates in backward beside backward),
//                           and what it has on a disk comes and goes beside its work
// What goes over one link beside one pass is added up first: gathers and sums between ranks; each direction to
// and from the host. On a CPU nothing is hidden: what moves data takes the cores that compute.
#pragma once

#include "trireme/plan/step_work.h"

namespace trireme {

struct TrafficSeconds {
  TrafficKind kind{};
  double bytes = 0;           // sent by this rank in a step
  double seconds = 0;         // on its way
  double waited_seconds = 0;  // of them, what compute does not hide
  bool crosses_machines = false;
};

struct KindSeconds {
  WorkKind kind{};
  double amount = 0;
  double seconds = 0;
};

struct StepTime {
  double seconds = 0;  // of a step
  double compute_seconds = 0;
  double host_optimizer_waited_seconds = 0;
  double overhead_seconds = 0;  // the profile's, of micro-batches and the step
  std::vector<KindSeconds> compute;
  std::vector<TrafficSeconds> traffic;
  double least_seconds = 0;  // by the profile's error
  double most_seconds = 0;
  double tokens_per_second = 0;  // of all ranks
  double mfu = 0;                // of the profile's peak rate
};

// Throws ConfigError: ranks on several machines, and the profile has no rate between them; offload to what it
// has no rate of.
StepTime step_time(const PlannedStep& step, const HardwareProfile& hardware);

}  // namespace trireme
