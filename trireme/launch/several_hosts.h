// One command for all hosts of a run: starts a launcher on each, over ssh, gives each its order, passes on
// their output and the requests to stop. The launcher of machine 0, the first host, then decides about
// attempts (first_machine.cpp); this one is not asked.
//
//   ssh to every host        -> all are ready, or each that is not is named and none starts
//   the order of machine 0   -> it says at which port the other launchers meet it
//   the others' orders       -> the run, as if each launcher had been started by hand
#pragma once

#include <ostream>
#include <vector>

#include "trireme/launch/host_slots.h"
#include "trireme/launch/launch.h"

namespace trireme {

// Returns the code of the run, as launch() does. Takes the stop signals of the calling thread. Throws
// ConfigError or CommError if a host cannot be reached, or cannot run the program.
int launch_on_hosts(const LaunchOptions& options, const std::vector<HostSlots>& hosts, std::ostream& out,
                    std::ostream& err);

}  // namespace trireme
