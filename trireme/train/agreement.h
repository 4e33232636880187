// What ranks decide together: whether all of them succeeded, whether any was asked to stop. Without it a rank
// that fails alone (a full disk, a missing file) would leave the others waiting until the timeout.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/comm/group.h"

namespace trireme {

class Agreement {
 public:
  // `device` is where the group's backend exchanges tensors.
  Agreement(Group& group, at::Device device) : group_(group), device_(device) {}

  // Every rank runs its `work`; then either it returns on all ranks, or all throw: those that failed their
  // own error, the others one of the same kind that names the rank which failed and `what` it was doing.
  // Collective.
  void all_or_none(const std::string& what, const std::function<void()>& work);

  // The largest of all ranks' values. Collective.
  int64_t largest(int64_t mine);
  // True when it is true on any rank. Collective.
  bool any(bool mine) { return largest(mine ? 1 : 0) != 0; }
  // Rank 0's value everywhere. Collective.
  int64_t of_rank_0(int64_t mine);
  // The sum over ranks, in fp64. Collective.
  double sum(double mine);
  // The text of the first rank that has one, everywhere; empty: none has. Collective.
  std::string first_text(const std::string& mine);
  // [ranks, values.size()] of everyone's values. Collective.
  std::vector<std::vector<int64_t>> gather(const std::vector<int64_t>& mine);

 private:
  Group& group_;
  at::Device device_;
};

}  // namespace trireme
