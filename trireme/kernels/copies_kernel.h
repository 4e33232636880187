// Many strided copies on a GPU in one launch (copies_kernel.cu): what the exchanges of heads pack and unpack.
// Every value is read and written once.
#pragma once

#include <stdint.h>

namespace trireme {

// From [outer, inner, run] to [outer, inner, run]; a run is contiguous. Distances and runs in bytes.
struct StridedCopy {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t from_outer = 0, from_inner = 0, to_outer = 0, to_inner = 0;
  int64_t outer = 0, inner = 0, run = 0;
};

constexpr int kCopiesOfLaunch = 32;

// Copies of elements of `element_bytes` (2 or 4), which neither overlap nor have 2^31 elements or more, on
// `stream`, a cudaStream_t of the current device. One launch for every kCopiesOfLaunch of them. The caller
// asks cudaGetLastError.
void launch_copies(const StridedCopy* copies, int64_t count, int element_bytes, void* stream);

}  // namespace trireme
