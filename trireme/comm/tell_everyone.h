// A few words of every rank to all, through the store where they meet: before there are groups.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/base/json.h"
#include "trireme/comm/rank_identity.h"

namespace trireme {

// Returns every rank's `of_rank`, by rank. Collective over the ranks of the store, with a key that was not
// used before. Throws the store's error.
std::vector<Json> tell_everyone(c10d::Store& store, const RankIdentity& identity, const std::string& key,
                                const Json& of_rank);

}  // namespace trireme
