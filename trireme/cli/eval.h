// trireme eval loss: held-out loss by position in the context, of a model or a checkpoint; alone or under a
// launcher.
#pragma once

#include <string>
#include <vector>

namespace trireme {

int run_eval(const std::vector<std::string>& arguments);

}  // namespace trireme
