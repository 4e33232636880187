// The element-wise half of attention on tiles of scores: in one kernel a pass on CUDA (score_tile_kernel.h), by ATen
// elsewhere.
//
//   forward    scores_NRT -> p_NRT; running max, sum and rescale [N, R, 1]
//   backward   scores_NRT, dp_NRT -> p_NRT, ds_NRT
//
// N heads of keys, R the rows of a key/value head's query heads, one head after another.
#pragma once

#include <ATen/ATen.h>

#include "trireme/kernels/score_tile_kernel.h"

namespace trireme {

struct RunningSoftmax_NR1 {
  at::Tensor max, sum, rescale;  // fp32; before the first tile: minus infinity, kNoKeysYet
};

// Results are of `dtype`, which the tile's number is; fp32 ones may take the place of the scores. All contiguous.
at::Tensor score_tile_softmax(const ScoreTile& tile, const at::Tensor& scores_NRT, at::ScalarType dtype,
                              const RunningSoftmax_NR1& running);

struct ScoreTileGradients {
  at::Tensor p_NRT, ds_NRT;
};
ScoreTileGradients score_tile_gradients(const ScoreTile& tile, const at::Tensor& scores_NRT,
                                        const at::Tensor& dp_NRT, at::ScalarType dtype,
                                        const at::Tensor& lse_NR1, const at::Tensor& delta_NR1);

}  // namespace trireme
