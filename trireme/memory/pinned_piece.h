// How much pinned memory a copy of pageable memory to a GPU goes through.
#pragma once

#include <cstdint>

namespace trireme {

// Large enough for the bus to run at its full rate, small beside a unit.
inline constexpr int64_t kPinnedPiece_bytes = int64_t{16} << 20;

}  // namespace trireme
