// Bytes of attention between Ulysses' exchanges at its fullest moments, beside q, k, v (and do, o) that the caller
// holds: the local kernel alone, ring attention's blocks and sums, or gathered keys. Read off
// attention/{sequence_attention, ring_attention, gathered_keys}.cpp. No torch here.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/engine/memory_bytes.h"

namespace trireme {

struct AttentionMoment {
  int64_t attention = 0;
  int64_t communication = 0;
};

// `heads` query and `kv_heads` key/value heads of this rank's local_tokens. After the last moment o and lse stay.
std::vector<AttentionMoment> attention_forward_moments(const MemoryShape& shape, int64_t heads,
                                                       int64_t kv_heads);
// After the last moment dq, dk and dv stay.
std::vector<AttentionMoment> attention_backward_moments(const MemoryShape& shape, int64_t heads,
                                                        int64_t kv_heads);

}  // namespace trireme
