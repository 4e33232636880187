// `trireme launch --nproc_per_node 2 -- train ...`
#pragma once

#include <string>
#include <vector>

namespace trireme {

// `arguments` follow the word launch. Returns the exit code of the run. Throws ConfigError.
int run_launch(const std::vector<std::string>& arguments);

}  // namespace trireme
