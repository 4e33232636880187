// The device that tests of any device run on. A binary is linked with one of two answers: the guarded device
// (device_under_test_guarded.cpp), or the first GPU (device_under_test_cuda.cpp), so that what is seen
// without a GPU is seen again where there is one.
#pragma once

#include <optional>

#include <c10/core/Device.h>

namespace trireme::testing {

// Nothing where this machine has none. On a GPU, libtorch from then on takes kernels that repeat their bits,
// and throws where it has none, except for cuDNN's attention: its backward then adds in no fixed order all
// the same (attention_backward.cu).
std::optional<c10::Device> device_under_test();

}  // namespace trireme::testing
