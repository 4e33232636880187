// Losses of steps as trainer_state.json lists them.
#pragma once

#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

// Throws DataError that names the field: no list, more than `most`, one that is not finite.
std::vector<double> saved_losses(const Json& state, const std::string& key, size_t most,
                                 const std::string& origin);

}  // namespace trireme
