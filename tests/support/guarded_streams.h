// The streams of the guarded device (guarded_device.h). The default stream does its work at once. Any other
// does it as late as it may: when the host or the default stream waits for a mark behind it. So a copy whose
// end nobody waits for finds its memory used by others, as it may on a GPU. Between two marks that one
// thread's work comes to, a second passes.
#pragma once

#include <functional>

#include <c10/core/Stream.h>

namespace trireme::testing {

// Does `work` now when the calling thread's stream is the default one, else at the end of that stream's work.
void queue_on_current_stream(std::function<void()> work);

// Does all work of the calling thread's stream.
void finish_current_stream();

}  // namespace trireme::testing
