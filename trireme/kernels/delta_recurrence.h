// The part of the gated delta rule that goes from chunk to chunk of a segment (delta_rule_segment.h), with a
// kernel of its own on a GPU (delta_recurrence_kernel.h), else in small products of ATen:
//
//   forward    R = beta v - beta c k S0    U = (I + A)^-1 R    o = c q S0    S1 = c_l S0 + (w k)' U
//   backward   dU = P' do + w k dS1        dR = (I + A)^-T dU  dS0 = c_l dS1 + (c q)' do - (beta c k)' dR
#pragma once

#include <ATen/ATen.h>

#include "trireme/kernels/delta_recurrence_kernel.h"
#include "trireme/kernels/delta_rule_segment.h"

namespace trireme {

// rows: beta v [n, N, C, Dv], or that and zeros below [n, N, 2 C, Dv], which become o. R's rows are scratch
// memory afterwards. U goes to `updates`, S0 of each chunk to `states` where these are defined. `state` becomes
// that behind the segment.
void delta_forwards(const DeltaSegment& s, const at::Tensor& rows_nNRD, const at::Tensor& updates_nNCD,
                    const at::Tensor& state_NDD, const at::Tensor& states_nNDD);

// d_updates: P' do, scratch memory afterwards. d_both: [ ; do], whose upper half becomes dR. dS1 of each chunk
// goes to `d_states`. `d_state` becomes that before the segment.
void delta_backwards(const DeltaSegment& s, const at::Tensor& d_updates_nNCD, const at::Tensor& d_both_nNCD,
                     const at::Tensor& d_state_NDD, const at::Tensor& d_states_nNDD);

// What the kernel gets, on any device. `states` may be undefined. Both throw InternalError: what is not
// contiguous fp32.
float* delta_kernel_data(const at::Tensor& x);
DeltaRecurrenceKernel delta_kernel_of(const DeltaSegment& s, const at::Tensor& state_NDD,
                                      const at::Tensor& states_nNDD);

}  // namespace trireme
