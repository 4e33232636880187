// A warp reads neighbouring columns; the warps of a block share their rows.
#include "trireme/kernels/gpu_code.h"
#include "trireme/kernels/partial_sums.h"

namespace trireme {
namespace {

constexpr int kSummedColumns = kWarp, kShares = 8;

__global__ void __launch_bounds__(kSummedColumns* kShares)
    add_partial_sums(const float* partial, int64_t rows, int64_t stride, int64_t count, float* sums) {
  __shared__ Shared<float, kSummedColumns * kShares> scratch;
  const int lane = static_cast<int>(threadIdx.x) % kSummedColumns;
  const int share = static_cast<int>(threadIdx.x) / kSummedColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSummedColumns + lane;
  float sum = 0;
  if (column < count)
    for (int64_t row = share; row < rows; row += kShares) sum += load_global(partial + row * stride + column);
  scratch[share * kSummedColumns + lane] = sum;
  __syncthreads();
  if (share > 0 || column >= count) return;
  for (int other = 1; other < kShares; ++other) sum += scratch[other * kSummedColumns + lane];
  store_global(sums + column, load_global(const_cast<const float*>(sums) + column) + sum);
}

}  // namespace

void launch_partial_sums(const float* partial, int64_t rows, int64_t stride, int64_t count, float* sums,
                         void* stream) {
  launch(add_partial_sums, {(count + kSummedColumns - 1) / kSummedColumns, kSummedColumns * kShares}, stream,
         partial, rows, stride, count, sums);
}

}  // namespace trireme
