// What ranks tell each other through the store where they meet: a few words each, before there is a group.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/base/json.h"

namespace trireme {

// Everyone's `mine`, by rank. Collective over the `size` ranks of the store, with a key that was not used before. Rank 0
// reads what the others wrote and writes all of it, so that the store answers a few requests for each rank.
std::vector<Json> tell_everyone(c10d::Store& store, int rank, int size, const std::string& key,
                                const Json& mine);

}  // namespace trireme
