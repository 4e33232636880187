// libtorch's _flash_attention_forward and _flash_attention_backward, which exist on CUDA alone, played on the
// CPU: they compute what FlashAttention-2 computes, leave unwritten (NaN) what it leaves, and throw where it
// would fail or address memory wrongly.
#pragma once

#include <cstdint>

namespace trireme_test {

// The elements that the kernel's offsets into the fp32 dq count, 2^31 - 1, are fewer while this lives.
class LoweredDqBound {
 public:
  explicit LoweredDqBound(int64_t elements);
  ~LoweredDqBound();
  LoweredDqBound& operator=(LoweredDqBound&&) = delete;
};

}  // namespace trireme_test
