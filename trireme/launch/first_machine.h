// The launcher of machine 0 of several: waits for the others, starts attempts on all, collects how all ranks ended, and
// decides.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "trireme/launch/run_control.h"
#include "trireme/launch/taken_signals.h"

namespace trireme {

// Listens at --master_port for the launchers of the other machines. Throws ConfigError. `err`: what it says while it
// waits.
std::unique_ptr<RunControl> first_machine(const LaunchOptions& options, const std::string& secret,
                                          TakenSignals& signals, std::ostream& err);

}  // namespace trireme
