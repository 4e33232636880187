// libFuzzer's entry for one target, TRIREME_FUZZ_TARGET, which the build names.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  trireme::fuzz::TRIREME_FUZZ_TARGET({data, bytes});
  return 0;
}
