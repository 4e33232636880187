// TCP connections to machines that may vanish without a word.
#pragma once

namespace trireme {

// The system finds within half a minute that the other machine is gone; small messages leave at once.
void watch_connection(int descriptor);

}  // namespace trireme
