// The share of a unit's flat buffer that each rank owns once optimizer, gradients or parameters are sharded
// (ZeRO, arXiv 1910.02054). Shares are contiguous and equal, so that NCCL gathers and sums a unit in one call,
// over any number of ranks. Each starts on a cache line: it has a multiple of 16 elements, and the unit's flat
// buffer ends with padding that makes it so. A share may be padding alone.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/shard/flat_unit.h"

namespace trireme {

struct UnitShare {
  int64_t begin = 0;  // elements from the start of the unit
  int64_t elements = 0;
};

// Of the flat buffer of a unit of so many elements, whose spans end before the padding.
int64_t padded_elements(int64_t elements, int ranks);
// Of that buffer; `elements` with its padding or without, which is the same share.
UnitShare share_of(int64_t elements, int ranks, int rank);
// One entry a rank: what collectives are told of equal shares.
std::vector<int64_t> equal_shares(int64_t share_elements, int ranks);

// The spans of `unit` that lie in the share, with offsets from the share's start.
FlatUnit cut_unit(const FlatUnit& unit, const UnitShare& share);

}  // namespace trireme
