#include "trireme/kernels/score_tile.h"

#include <limits>

#include "trireme/base/error.h"
#include "trireme/kernels/gpu_launches.h"

namespace trireme {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the kernel takes, whoever computes.
void demand_tile(const ScoreTile& tile, std::initializer_list<at::Tensor> all) {
  for (const at::Tensor& x : all)
    TRIREME_ASSERT(x.is_contiguous() && (x.size(2) == 1 || x.size(2) == tile.row_keys) &&
                       x.size(0) * x.size(1) == tile.rows,
                   "attention by tiles: a tile of ", tile.rows, " rows of ", tile.row_keys, " keys gets ",
                   x.sizes(), " of strides ", x.strides());
}

// [R, T], true where a row does not see a key.
at::Tensor hidden_keys(const ScoreTile& tile, int64_t rows, at::Device device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  const at::Tensor key = at::arange(tile.row_keys, options).unsqueeze(0);
  const at::Tensor query = at::arange(rows, options).remainder(tile.rows_of_head).unsqueeze(1);
  at::Tensor hidden = key.ge(tile.band.keys);
  if (tile.band.has_begin) hidden = hidden.logical_or(key.lt(query + tile.band.begin));
  if (tile.band.has_end) hidden = hidden.logical_or(key.ge(query + tile.band.end));
  return hidden.expand({rows, tile.row_keys});
}

at::Tensor capped(const ScoreTile& tile, const at::Tensor& scores_NRT) {
  const at::Tensor scaled = scores_NRT * tile.scale;
  return tile.cap > 0 ? at::tanh(scaled / tile.cap).mul_(tile.cap) : scaled;
}

}  // namespace

at::Tensor score_tile_softmax(const ScoreTile& tile, const at::Tensor& scores_NRT, at::ScalarType dtype,
                              const RunningSoftmax_NR1& running) {
  demand_tile(tile, {scores_NRT, running.max, running.sum, running.rescale});
  if (scores_NRT.is_cuda()) {
    at::Tensor p_NRT = dtype == at::kFloat ? scores_NRT : at::empty_like(scores_NRT, dtype);
    if (gpu::score_tile_softmax(tile, scores_NRT, p_NRT, running)) return p_NRT;
  }
  const at::Tensor hidden = hidden_keys(tile, scores_NRT.size(1), scores_NRT.device());
  const at::Tensor x = capped(tile, scores_NRT).masked_fill_(hidden, -kInfinity);
  const at::Tensor max = at::maximum(running.max, x.amax(2, true));
  const at::Tensor reference = max.masked_fill(max.eq(-kInfinity), 0);
  const at::Tensor p_NRT = (x - reference).exp_();
  running.rescale.copy_((running.max - reference).exp_());
  running.max.copy_(max);
  const at::Tensor sum = running.sum.clamp_min(0) * running.rescale + p_NRT.sum(2, true);
  running.sum.copy_(at::where(hidden.all(1, true), running.sum, sum));
  return p_NRT.to(dtype);
}

ScoreTileGradients score_tile_gradients(const ScoreTile& tile, const at::Tensor& scores_NRT,
                                        const at::Tensor& dp_NRT, at::ScalarType dtype,
                                        const at::Tensor& lse_NR1, const at::Tensor& delta_NR1) {
  demand_tile(tile, {scores_NRT, dp_NRT, lse_NR1, delta_NR1});
  if (scores_NRT.is_cuda()) {
    const bool in_place = dtype == at::kFloat;
    ScoreTileGradients gradients{in_place ? scores_NRT : at::empty_like(scores_NRT, dtype),
                                 in_place ? dp_NRT : at::empty_like(dp_NRT, dtype)};
    if (gpu::score_tile_gradients(tile, scores_NRT, dp_NRT, gradients.p_NRT, gradients.ds_NRT, lse_NR1,
                                  delta_NR1))
      return gradients;
  }
  const at::Tensor hidden = hidden_keys(tile, scores_NRT.size(1), scores_NRT.device());
  const at::Tensor x = capped(tile, scores_NRT);
  const at::Tensor p_NRT = (x - lse_NR1).exp_().masked_fill_(hidden, 0);
  at::Tensor ds_NRT = (p_NRT * (dp_NRT - delta_NR1)).mul_(tile.scale).masked_fill_(hidden, 0);
  if (tile.cap > 0) ds_NRT.mul_(1 - (x / tile.cap).square_());
  return {p_NRT.to(dtype), ds_NRT.to(dtype)};
}

}  // namespace trireme
