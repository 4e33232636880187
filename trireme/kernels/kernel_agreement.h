// Two kernels on the same small input: three segments of which one has a single row, one more keys than rows,
// and rows that no segment has keys for. Forward and backward.
#pragma once

#include <string>

#include "trireme/kernels/cuda_calls.h"

namespace trireme {

struct AgreementCase {
  at::ScalarType dtype = at::kBFloat16;
  at::Device device = at::kCPU;
  int64_t width = 64;
  int64_t heads_of_group = 1;
  Band band;  // whose bounds are made small
};

// Empty: they agree within what 16 bits explain. Else what differs, by how much, and what was expected.
std::string kernel_difference(CallKernel& judged, CallKernel& judge, const AgreementCase& c);

}  // namespace trireme
