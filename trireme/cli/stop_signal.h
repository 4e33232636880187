// SIGTERM and SIGINT as a request to stop: the run finishes its step, saves, and exits 75.
// A second one, seconds later, ends it at once.
#pragma once

#include <atomic>
#include <cstdint>

namespace trireme {

// Handles the two signals from here on; the flag turns true at the first of them.
const std::atomic<bool>& watch_stop_signals();

}  // namespace trireme
