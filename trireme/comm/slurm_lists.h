// Slurm's compressed lists.
#pragma once

#include <string>
#include <vector>

namespace trireme {

// "2(x3),1" -> 2, 2, 2, 1. Throws ConfigError that quotes the text.
std::vector<int> slurm_tasks_per_node(const std::string& text);

// "gpu[07-09,12],login1" -> "gpu07". Throws ConfigError that quotes the text.
std::string slurm_first_host(const std::string& nodelist);

}  // namespace trireme
