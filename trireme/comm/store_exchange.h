// Ranks exchange short messages through the store where they meet, before there is a group.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/base/json.h"

namespace trireme {

// Returns every rank's `mine`, by rank. Collective over the `size` ranks of the store, with a key that was
// not used before. Rank 0 reads all messages and writes them as one list, so the store answers few requests
// per rank.
std::vector<Json> tell_everyone(c10d::Store& store, int rank, int size, const std::string& key,
                                const Json& of_rank);

}  // namespace trireme
