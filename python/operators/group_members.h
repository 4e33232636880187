// Some members of a process group as a Group of their own, without a second connection: an all-to-all of the
// members is one of the whole group in which the others get nothing. So every rank of the whole group makes
// the same calls in the same order, as Ulysses ranks and ring ranks do.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "trireme/comm/group.h"

namespace trireme {

// U Ulysses ranks (neighbours) in each of R ring ranks, of a process group of U x R.
struct SequenceGroups {
  Group ulysses;  // the ranks of this ring rank
  Group ring;     // this place of every ring rank
};

// `name`: under which torch.distributed registered the group; "" is this rank alone. The exchanges run on the
// group's backend for `device`. Throws ConfigError: `ring` does not divide the group's ranks.
SequenceGroups sequence_groups(const std::string& name, int64_t ring, at::Device device);

}  // namespace trireme
