// trireme export: turns a checkpoint into a Hugging Face model directory. One process, no ranks.
#pragma once

#include <string>
#include <vector>

namespace trireme {

int run_export(const std::vector<std::string>& arguments);

}  // namespace trireme
