// What a rank's last words on stderr tell the launcher, beside its exit code. Whoever writes them and the launcher, which
// looks for them, take them from here.
#pragma once

#include <string_view>

namespace trireme {

// Another rank's error ended this one: "rank 0 failed while saving; its own message says why".
constexpr std::string_view kAnotherSaysWhy = "its own message says why";

// Somebody asked the run to stop: it is not to be started again.
constexpr std::string_view kAskedToStop = "trireme: asked to stop";

}  // namespace trireme
