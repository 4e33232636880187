// Formats a set of ranks for messages.
#pragma once

#include <set>
#include <string>

namespace trireme {

// "rank 3"; "ranks 0-3, 7".
std::string rank_list(const std::set<int>& ranks);

}  // namespace trireme
