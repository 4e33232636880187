// The launcher of a machine other than machine 0: obeys machine 0's launcher and reports this machine's
// events to it.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "trireme/launch/run_control.h"
#include "trireme/launch/taken_signals.h"

namespace trireme {

std::unique_ptr<RunControl> other_machine(const LaunchOptions& options, const std::string& secret,
                                          TakenSignals& signals, std::ostream& err);

}  // namespace trireme
