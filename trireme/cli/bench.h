// trireme bench step | matmul | comm: how fast this machine trains, multiplies, and what its exchanges cost
// (bench_comm.h). Measurement itself is trireme/measure.
#pragma once

#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

int run_bench(const std::vector<std::string>& arguments);

// What a benchmark's numbers were taken on.
Json benchmarked_machine();

}  // namespace trireme
