#include "trireme/base/cpu_cores.h"

#include <algorithm>
#include <sched.h>
#include <unistd.h>

namespace trireme {

int cpu_cores() {
  cpu_set_t set;
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  return std::max(1, known ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace trireme
