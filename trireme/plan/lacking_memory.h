// What would hold a plan that does not fit: a host with more memory, and where other changes are looked for.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/planned.h"

namespace trireme {

// "525.7 GiB of the 448.0 GiB of each host that a plan may fill", and where that is too little, the
// --host_memory_limit that would do.
std::string host_share_text(const PlanRequest& request, int ranks, int64_t host_bytes);

// Empty: it fits.
std::vector<std::string> advice_on_lacking_memory(const PlanRequest& request, const Planned& best);

}  // namespace trireme
