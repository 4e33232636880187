// What an MLP keeps beside its first product, in one buffer of a tile (KeptAfterAttention::mlp).
#pragma once

#include <ATen/ATen.h>

namespace trireme {

struct KeptParts {
  at::Tensor first;  // [T, first_width]
  at::Tensor last;   // [T, the rest]
};

// Views of kept [T, W], one after the other in the tile's memory, each contiguous: kernels then see what they
// see without keeping, and results have the same bits.
inline KeptParts kept_parts(const at::Tensor& kept_TW, int64_t first_width) {
  const int64_t T = kept_TW.size(0), rest = kept_TW.size(1) - first_width;
  const at::Tensor flat = kept_TW.view({-1});
  return {flat.narrow(0, 0, T * first_width).view({T, first_width}),
          flat.narrow(0, T * first_width, T * rest).view({T, rest})};
}

}  // namespace trireme
