// The share of a unit's flat buffer that each rank owns once optimizer, gradients or parameters are sharded
// (ZeRO, arXiv 1910.02054). Shares are contiguous and as equal as possible, cut at multiples of 16 elements
// so that each starts on a cache line. No padding: any unit over any number of ranks; a share may be empty.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/shard/flat_unit.h"

namespace trireme {

struct UnitShare {
  int64_t begin = 0;  // elements from the start of the unit
  int64_t elements = 0;
};

// One entry a rank; `elements` must be a multiple of 16, which model/model_layout.h sees to (else
// InternalError). They sum to `elements`.
std::vector<int64_t> share_sizes(int64_t elements, int ranks);
UnitShare share_of(int64_t elements, int ranks, int rank);

// The spans of `unit` that lie in the share, with offsets from the share's start.
FlatUnit cut_unit(const FlatUnit& unit, const UnitShare& share);

}  // namespace trireme
