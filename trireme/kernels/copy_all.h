// Several copies between tensors as one operation: a GPU takes one launch for many (copies_kernel.h), where
// copy_ takes one for each.
#pragma once

#include <vector>

#include <ATen/ATen.h>

namespace trireme {

// to.copy_(from): tensors [a, b, heads, D] of the same sizes. No two of a list overlap.
struct TensorCopy {
  at::Tensor to, from;
};
void copy_all(const std::vector<TensorCopy>& copies);

}  // namespace trireme
