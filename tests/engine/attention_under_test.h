// The kernel that tests of any device (tests/support/device_under_test.h) run there with.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/engine/engine_options.h"

namespace trireme::testing {

// FlashAttention on a GPU, as libtorch can make it repeat its bits; elsewhere, and in fp32, the reference.
inline AttentionKernel attention_under_test(at::Device device, Precision precision) {
  const bool flash = device.is_cuda() && precision != Precision::fp32;
  return flash ? AttentionKernel::flash : AttentionKernel::reference;
}

}  // namespace trireme::testing
