// A tensor that changes its role: an attention output that is kept for backward, a received buffer that is q,
// k and v from then on.
#pragma once

#include <ATen/ATen.h>

#include "trireme/device/memory_category.h"

namespace trireme {

// The tensor's whole storage is counted as `category` from now on, in the account that it was counted in.
// Nothing happens for an undefined tensor, or for memory that is not counted.
void count_as(const at::Tensor& tensor, MemoryCategory category);

}  // namespace trireme
