// The kernels of our own that are not token-wise (those: token_ops_gpu.h), on the current stream of a CUDA
// device (gpu_launches.cpp; a build without CUDA has gpu_launches_none.cpp). Each returns false where no
// kernel takes the tensors.
#pragma once

#include "trireme/kernels/copy_all.h"
#include "trireme/kernels/delta_recurrence_kernel.h"
#include "trireme/kernels/score_tile.h"

namespace trireme::gpu {

bool copy_all(const std::vector<TensorCopy>& copies);

// delta_recurrence_kernel.h on the device of `state`, which is CUDA's.
bool delta_forwards(const at::Tensor& state_NDD, const DeltaRecurrenceKernel& recurrence,
                    DeltaOutputs outputs, float* rows_nNRD, float* updates_nNCD);
bool delta_backwards(const at::Tensor& d_state_NDD, const DeltaRecurrenceKernel& recurrence,
                     const float* d_updates_nNCD, float* d_both_nNCD);

// score_tile.h, on CUDA.
bool score_tile_softmax(const ScoreTile& tile, const at::Tensor& scores_NRT, const at::Tensor& p_NRT,
                        const RunningSoftmax_NR1& running);
bool score_tile_gradients(const ScoreTile& tile, const at::Tensor& scores_NRT, const at::Tensor& dp_NRT,
                          const at::Tensor& p_NRT, const at::Tensor& ds_NRT, const at::Tensor& lse_NR1,
                          const at::Tensor& delta_NR1);

}  // namespace trireme::gpu
