// The 16-bit floats as bits, for kernels that know no library.
#pragma once

#include <stdint.h>

// Of a function that the host and a GPU's kernels share.
#ifdef __CUDACC__
#define TRIREME_HOST_DEVICE __host__ __device__
#else
#define TRIREME_HOST_DEVICE
#endif

namespace trireme {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

}  // namespace trireme
