// trireme bench step | matmul: how fast this machine trains and multiplies. Measurement itself is
// trireme/measure.
#pragma once

#include <string>
#include <vector>

namespace trireme {

int run_bench(const std::vector<std::string>& arguments);

}  // namespace trireme
