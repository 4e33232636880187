// The recurrence of the gated delta rule over the chunks of a segment on a GPU, both ways, in one launch: what
// delta_recurrence_kernel.cu launches on `stream`, a cudaStream_t of the current device. All is fp32.
//
//   forward    R = R - beta c k S0    U = (I + A)^-1 R    o = c q S0    S1 = c_l S0 + (w k)' U
//   backward   dU = dU + w k dS1      dR = (I + A)^-T dU  dS0 = c_l dS1 + (c q)' do - (beta c k)' dR
//
// Columns of the state do not see each other: a block takes some columns of one head, and holds them in shared
// memory from the first chunk to the last. Letters and shapes: delta_rule_segment.h.
#pragma once

#include <stdint.h>

namespace trireme {

struct DeltaRecurrenceKernel {
  int64_t chunks = 0, heads = 0;           // n, N
  int64_t key_width = 0, value_width = 0;  // Dk, Dv
  const float* reads_nNCD = nullptr;       // [-beta c k; c q]: [n, N, 2 C, Dk]
  const float* writes_nNCD = nullptr;      // w k: [n, N, C, Dk]
  const float* inverse_nNCC = nullptr;     // (I + A)^-1
  bool inverse_by_columns = false;         // each matrix of it lies column by column
  const float* carried_nNC = nullptr;      // c, of which the last token's is read
  float* state_NDD = nullptr;              // S or dS before the first chunk, then behind the last
  float* states_nNDD = nullptr;            // out: S0 or dS1 of each chunk; null: not asked for
};

// Widths that the kernel takes: whole accesses of 16 bytes, and a state that shared memory holds.
constexpr int64_t kMostDeltaKeyWidth = 256;
constexpr bool knows_delta_widths(int64_t key_width, int64_t value_width) {
  return key_width % 4 == 0 && value_width % 4 == 0 && key_width > 0 && value_width > 0 &&
         key_width <= kMostDeltaKeyWidth;
}

enum class DeltaOutputs { computed, left };

// rows: R [n, N, C, Dv], which stays as it is, or with `computed` outputs [R; o] [n, N, 2 C, Dv], where what o
// holds is added to. updates [n, N, C, Dv]: U, out.
void launch_delta_forwards(const DeltaRecurrenceKernel& recurrence, DeltaOutputs outputs, float* rows_nNRD,
                           float* updates_nNCD, void* stream);
// d_updates [n, N, C, Dv]: P' do, which stays. d_both [n, N, 2 C, Dv]: [dR, out; do].
void launch_delta_backwards(const DeltaRecurrenceKernel& recurrence, const float* d_updates_nNCD,
                            float* d_both_nNCD, void* stream);

}  // namespace trireme
