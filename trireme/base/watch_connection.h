// TCP connections to machines that may vanish without notice.
#pragma once

namespace trireme {

// Makes the system detect within half a minute that the other machine is gone, and send small messages at
// once.
void watch_connection(int descriptor);

}  // namespace trireme
