// The 16-bit floats as bits, for kernels that know no library.
#pragma once

#include <stdint.h>

namespace trireme {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

}  // namespace trireme
