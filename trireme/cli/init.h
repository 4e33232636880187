// trireme init: a fresh model directory in Hugging Face's form, drawn by seed.
#pragma once

#include <string>
#include <vector>

namespace trireme {

// `arguments` without the program's and the command's name. Returns the exit code; throws Error.
int run_init(const std::vector<std::string>& arguments);

}  // namespace trireme
