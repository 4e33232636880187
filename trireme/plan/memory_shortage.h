// What fills the memory of a planned step when it is fullest: category by category, the largest first.
#pragma once

#include <string>
#include <vector>

#include "trireme/device/memory_category.h"
#include "trireme/plan/memory_change_sets.h"

namespace trireme {

struct CategoryBytes {
  MemoryCategory category{};
  int64_t bytes = 0;
};

struct MemoryShortage {
  TensorLimits limits;
  std::string fullest_moment;         // "backward of layer 31: attention"
  std::vector<CategoryBytes> device;  // of a rank, at that moment
  std::vector<CategoryBytes> host;    // of the ranks of a machine

  int64_t device_bytes() const;
  int64_t host_bytes() const;
};

MemoryShortage memory_shortage(const PlannedStep& step, const TensorLimits& limits);

}  // namespace trireme
