// Signals that ask this rank to stop (base/stop_request.h lists them). Before training begins the process
// ends at once, with the code of CommError. Later the run finishes its step, saves, and ends with that code.
// A second request, seconds later, ends it at once; of the parent's only its own second.
#pragma once

#include <atomic>

namespace trireme {

// From now on a request ends the process. For training's start-up. Call before any other thread is started: the
// signals then reach a thread that does nothing else, and are blocked in all the others.
void end_on_stop_request();

// From now on a request sets the flag.
void save_on_stop_request();
const std::atomic<bool>& stop_requested();

}  // namespace trireme
