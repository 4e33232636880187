// Bytes that split_master.cpp allocates on a device other than the host, for the memory forecast. No torch
// here.
#pragma once

#include <cstdint>

namespace trireme {

constexpr int64_t kSplitPiece_elements = int64_t{1} << 22;
// Of an element of a piece: the most of joining, splitting and rounding, four int32 tensors and one of bool.
constexpr int64_t kSplitInAten_bytes = 4 * 4 + 1;

}  // namespace trireme
