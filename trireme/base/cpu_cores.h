#pragma once

namespace trireme {

// Processors that this process may run on: by its affinity, which containers and schedulers set too. At least 1.
int cpu_cores();

}  // namespace trireme
