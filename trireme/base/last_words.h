// Phrases that a rank writes to stderr before it ends. The launcher looks for them in addition to the exit
// code.
#pragma once

#include <string_view>

namespace trireme {

// Another rank's error ended this rank: "rank 0 failed while saving; its own message says why".
constexpr std::string_view kAnotherSaysWhy = "its own message says why";

// Somebody asked the run to stop: the launcher must not restart it.
constexpr std::string_view kAskedToStop = "trireme: asked to stop";

}  // namespace trireme
