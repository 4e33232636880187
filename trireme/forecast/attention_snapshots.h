// Bytes of attention between Ulysses' exchanges when they are fullest, beside q, k, v (and do, o) that the
// caller holds: the local kernel alone, ring attention's blocks and sums, or gathered keys. Read off
// attention/{sequence_attention, ring_attention, gathered_keys}.cpp.
#pragma once

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

struct AttentionSnapshot {
  int64_t attention = 0;
  int64_t communication = 0;
};

struct AttentionSnapshots {
  std::vector<AttentionSnapshot> forward;   // after the last one o and lse stay
  std::vector<AttentionSnapshot> backward;  // after the last one dq, dk and dv stay
  // The same where d(o) and o come in one message of Ulysses: GPUs' kernels copy these views of it.
  std::vector<AttentionSnapshot> backward_of_pair;
  int64_t flash_workspace_bytes = 0;  // of the CPU's kernel, kept from call to call
};

// `heads` query and `kv_heads` key/value heads of this rank's ring_tokens, whose gradients have `gradient_bytes` a
// value: those of what is stored (0), or of fp32.
AttentionSnapshots attention_snapshots(const ForecastInputs& inputs, int64_t heads, int64_t kv_heads,
                                       int64_t gradient_bytes = 0);

}  // namespace trireme
