#include "trireme/kernels/delta_recurrence.h"

#include "trireme/base/error.h"
#include "trireme/kernels/gpu_launches.h"

namespace trireme {
namespace {

constexpr int64_t kC = kDeltaChunk_tokens;

// Whether the kernel takes such a state.
bool on_gpu(const at::Tensor& state_NDD) {
  return state_NDD.is_cuda() && state_NDD.scalar_type() == at::kFloat &&
         knows_delta_widths(state_NDD.size(1), state_NDD.size(2));
}

}  // namespace

float* delta_kernel_data(const at::Tensor& x) {
  TRIREME_ASSERT(x.is_contiguous() && x.scalar_type() == at::kFloat, "delta rule: a kernel gets ",
                 x.scalar_type(), " ", x.sizes(), " of strides ", x.strides());
  return x.mutable_data_ptr<float>();
}

DeltaRecurrenceKernel delta_kernel_of(const DeltaSegment& s, const at::Tensor& state_NDD,
                                      const at::Tensor& states_nNDD) {
  const bool by_columns = !s.inverse_nBVCC.is_contiguous();
  return {.chunks = s.chunks,
          .heads = state_NDD.size(0),
          .key_width = state_NDD.size(1),
          .value_width = state_NDD.size(2),
          .reads_nNCD = delta_kernel_data(s.reads_nNCD),
          .writes_nNCD = delta_kernel_data(s.writes_nNCD),
          .inverse_nNCC = delta_kernel_data(by_columns ? s.inverse_nBVCC.mT() : s.inverse_nBVCC),
          .inverse_by_columns = by_columns,
          .carried_nNC = delta_kernel_data(s.carried_nBVC1),
          .state_NDD = delta_kernel_data(state_NDD),
          .states_nNDD = states_nNDD.defined() ? delta_kernel_data(states_nNDD) : nullptr};
}

void delta_forwards(const DeltaSegment& s, const at::Tensor& rows_nNRD, const at::Tensor& updates_nNCD,
                    const at::Tensor& state_NDD, const at::Tensor& states_nNDD) {
  const auto outputs = rows_nNRD.size(2) == kC ? DeltaOutputs::left : DeltaOutputs::computed;
  if (on_gpu(state_NDD) && gpu::delta_forwards(state_NDD, delta_kernel_of(s, state_NDD, states_nNDD), outputs,
                                               delta_kernel_data(rows_nNRD), delta_kernel_data(updates_nNCD)))
    return;
  const at::Tensor inverse_nNCC = s.inverse_nBVCC.flatten(1, 2), last_nN11 = s.last_carried_nN11();
  for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
    if (states_nNDD.defined()) states_nNDD[chunk].copy_(state_NDD);
    const at::Tensor rows_NRD = rows_nNRD[chunk];
    at::Tensor updates_NCD = updates_nNCD[chunk];
    rows_NRD.baddbmm_(s.reads_nNCD[chunk].narrow(1, 0, rows_NRD.size(1)), state_NDD);
    at::bmm_out(updates_NCD, inverse_nNCC[chunk], rows_NRD.narrow(1, 0, kC));
    state_NDD.mul_(last_nN11[chunk]).baddbmm_(s.writes_nNCD[chunk].mT(), updates_NCD);
  }
}

void delta_backwards(const DeltaSegment& s, const at::Tensor& d_updates_nNCD, const at::Tensor& d_both_nNCD,
                     const at::Tensor& d_state_NDD, const at::Tensor& d_states_nNDD) {
  if (on_gpu(d_state_NDD) &&
      gpu::delta_backwards(d_state_NDD, delta_kernel_of(s, d_state_NDD, d_states_nNDD),
                           delta_kernel_data(d_updates_nNCD), delta_kernel_data(d_both_nNCD)))
    return;
  const at::Tensor inverse_nNCC = s.inverse_nBVCC.flatten(1, 2), last_nN11 = s.last_carried_nN11();
  for (int64_t chunk = s.chunks - 1; chunk >= 0; --chunk) {
    d_states_nNDD[chunk].copy_(d_state_NDD);
    d_updates_nNCD[chunk].baddbmm_(s.writes_nNCD[chunk], d_state_NDD);
    at::Tensor d_rows_NCD = d_both_nNCD[chunk].narrow(1, 0, kC);
    at::bmm_out(d_rows_NCD, inverse_nNCC[chunk].mT(), d_updates_nNCD[chunk]);
    d_state_NDD.mul_(last_nN11[chunk]).baddbmm_(s.reads_nNCD[chunk].mT(), d_both_nNCD[chunk]);
  }
}

}  // namespace trireme
