// Recounts tensors whose role changes: an attention output that is kept for backward, a received buffer that
// becomes q, k and v.
#pragma once

#include <ATen/ATen.h>

#include "trireme/device/memory_category.h"

namespace trireme {

// Counts the tensor's whole storage as `category` from now on, in the same account as before. Ignores
// undefined tensors and memory that is not counted.
void count_as(const at::Tensor& tensor, MemoryCategory category);

}  // namespace trireme
