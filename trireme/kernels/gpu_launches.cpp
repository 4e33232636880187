#include "trireme/kernels/gpu_launches.h"

#include "trireme/kernels/copies_kernel.h"
#include "trireme/kernels/gpu_stream.h"
#include "trireme/kernels/score_tile_kernel.h"

namespace trireme::gpu {

bool copy_all(const std::vector<TensorCopy>& copies) {
  if (copies.empty()) return true;
  const at::Tensor& first = copies.front().to;
  if (!first.is_cuda() || !kernels_know(first.scalar_type())) return false;
  const int64_t bytes = first.element_size();
  std::vector<StridedCopy> strided;
  strided.reserve(copies.size());
  for (const auto& [to, from] : copies) {
    for (const at::Tensor& x : {to, from})
      if (x.device() != first.device() || x.scalar_type() != first.scalar_type() || x.dim() != 4 ||
          x.sizes() != to.sizes() || x.stride(3) != 1 || x.stride(2) != x.size(3) ||
          x.numel() >= kTooManyForKernels)
        return false;
    if (to.numel() > 0)
      strided.push_back({from.const_data_ptr(), to.mutable_data_ptr(), from.stride(0) * bytes,
                         from.stride(1) * bytes, to.stride(0) * bytes, to.stride(1) * bytes, to.size(0),
                         to.size(1), to.size(2) * to.size(3) * bytes});
  }
  on_stream(first, [&](void* stream) {
    launch_copies(strided.data(), static_cast<int64_t>(strided.size()), static_cast<int>(bytes), stream);
  });
  return true;
}

bool delta_forwards(const at::Tensor& state_NDD, const DeltaRecurrenceKernel& recurrence,
                    DeltaOutputs outputs, float* rows_nNRD, float* updates_nNCD) {
  on_stream(state_NDD, [&](void* stream) {
    launch_delta_forwards(recurrence, outputs, rows_nNRD, updates_nNCD, stream);
  });
  return true;
}

bool delta_backwards(const at::Tensor& d_state_NDD, const DeltaRecurrenceKernel& recurrence,
                     const float* d_updates_nNCD, float* d_both_nNCD) {
  on_stream(d_state_NDD,
            [&](void* stream) { launch_delta_backwards(recurrence, d_updates_nNCD, d_both_nNCD, stream); });
  return true;
}

bool score_tile_softmax(const ScoreTile& tile, const at::Tensor& scores_NRT, const at::Tensor& p_NRT,
                        const RunningSoftmax_NR1& running) {
  on_stream(scores_NRT, [&](void* stream) {
    launch_softmax_tile(tile, number_of(p_NRT), scores_NRT.const_data_ptr<float>(), p_NRT.mutable_data_ptr(),
                        {running.max.mutable_data_ptr<float>(), running.sum.mutable_data_ptr<float>(),
                         running.rescale.mutable_data_ptr<float>()},
                        stream);
  });
  return true;
}

bool score_tile_gradients(const ScoreTile& tile, const at::Tensor& scores_NRT, const at::Tensor& dp_NRT,
                          const at::Tensor& p_NRT, const at::Tensor& ds_NRT, const at::Tensor& lse_NR1,
                          const at::Tensor& delta_NR1) {
  on_stream(scores_NRT, [&](void* stream) {
    launch_gradient_tile(tile, number_of(p_NRT), scores_NRT.const_data_ptr<float>(),
                         dp_NRT.const_data_ptr<float>(), p_NRT.mutable_data_ptr(), ds_NRT.mutable_data_ptr(),
                         lse_NR1.const_data_ptr<float>(), delta_NR1.const_data_ptr<float>(), stream);
  });
  return true;
}

}  // namespace trireme::gpu
