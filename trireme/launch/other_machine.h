// The launcher of another machine than machine 0: does what that one's launcher says, and tells it what happens here.
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
