// The launcher of machine 0 of several: waits for the other launchers, starts attempts on all machines,
// collects the ends of all ranks, and decides how to go on.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "trireme/launch/run_control.h"
#include "trireme/launch/taken_signals.h"

namespace trireme {

// Listens at --master_port for the launchers of the other machines. Throws ConfigError. `err` receives its
// messages while it waits.
std::unique_ptr<RunControl> first_machine(const LaunchOptions& options, const std::string& secret,
                                          TakenSignals& signals, std::ostream& err);

}  // namespace trireme
