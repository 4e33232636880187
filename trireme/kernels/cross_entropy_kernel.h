// Cross entropy of rows of logits on a GPU (cross_entropy_kernel.cu), with the gradient in their place: one
// launch, one block a row. Memory gives each logit once and takes each gradient once; a row is read a second
// time, backwards, from the caches.
//
//   loss_t = log(sum_v exp(x_tv)) - x_t,target          d(x_tv) = (softmax_tv - [v = target]) scale
//
// With a cap the logits are c = cap tanh(x / cap), and d(c) is multiplied by 1 - (c / cap)^2 to be d(x).
//
// A target below 0 has no loss and no gradient (zeros), one from V on a loss that is not a number.
#pragma once

#include <optional>

#include "trireme/kernels/gpu_rows.h"

namespace trireme {

struct CrossEntropySizes {
  GpuNumber number = GpuNumber::fp32;  // of the logits; computed in fp32
  int64_t rows = 0, width = 0;         // T, V below 2^31
};

// logits [T, V], targets [T], loss [T]. Without a scale the logits stay. `stream`: a cudaStream_t of the
// current device, which the pointers are of. `cap` 0: none. The caller asks cudaGetLastError.
void launch_cross_entropy(const CrossEntropySizes& sizes, const GpuRows& logits, const int64_t* targets,
                          float* loss, std::optional<float> scale, void* stream, float cap = 0);

}  // namespace trireme
