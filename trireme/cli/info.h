// trireme info: what this build and machine have: versions, devices, transports, kernels in use.
#pragma once

#include <string>
#include <vector>

namespace trireme {

int run_info(const std::vector<std::string>& arguments);

}  // namespace trireme
