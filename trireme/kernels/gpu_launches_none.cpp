// Stands in for gpu_launches.cpp in a build without CUDA: no kernel takes any tensor.
#include "trireme/kernels/gpu_launches.h"

namespace trireme::gpu {

bool copy_all(const std::vector<TensorCopy>&) {
  return false;
}

bool delta_forwards(const at::Tensor&, const DeltaRecurrenceKernel&, DeltaOutputs, float*, float*) {
  return false;
}
bool delta_backwards(const at::Tensor&, const DeltaRecurrenceKernel&, const float*, float*) {
  return false;
}

bool score_tile_softmax(const ScoreTile&, const at::Tensor&, const at::Tensor&, const RunningSoftmax_NR1&) {
  return false;
}
bool score_tile_gradients(const ScoreTile&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                          const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  return false;
}

}  // namespace trireme::gpu
